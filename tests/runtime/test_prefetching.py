"""What a loader's processes fetch ahead goes to another worker that has nothing to do."""

from __future__ import annotations

import json

import pytest

from support.launch import Launch
from support.recorded import checked, edited
from support.replays import broken_replay
from support.scripts import SIGNS, script
from support.sound import right
from support.suites import each

SCRIPT = script(f"""
{SIGNS}
torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
data = TensorDataset(torch.arange(64.0).reshape(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=4, persistent_workers="persistent" in sys.argv)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
seen = []
for epoch in range(2):
    seen.append([])
    if paceline.worker() == 1:
        wait_for(f"ahead-{{epoch}}")
    for (x,) in loader:
        if paceline.worker() == 0 and not seen[-1]:
            made(f"ahead-{{epoch}}")
            wait_for(f"trained-{{epoch}}")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen[-1] += x.flatten().tolist()
        if paceline.worker() == 1:
            made(f"trained-{{epoch}}")
print(json.dumps(seen))
""")


@pytest.mark.parametrize(
    ("protocol", "persistent"),
    each([(p, k) for p in ("asp", "ssp", "ad-psgd") for k in ("anew", "persistent")], default={("asp", "persistent")}),
)
def test_a_worker_gets_batches_though_another_one_has_fetched_all_of_the_epoch(
    protocol: str, persistent: str, launch: Launch
) -> None:
    flags = ("-n", "2", "--threads", "1", "--max-seconds", "60", "-p", protocol)
    run = launch.run(SCRIPT, *flags, args=(persistent,)).completed()
    seen = [json.loads(run.log(worker).splitlines()[-1]) for worker in range(2)]
    for epoch in range(2):
        assert sorted(seen[0][epoch] + seen[1][epoch]) == [float(one) for one in range(64)]
        assert seen[1][epoch], "it had to make a step before the other one, which was ahead, made its first"
    assert (run.summary["samples"], run.summary["samples_missed"]) == (128, 0)
    right(run)
    assert broken_replay(run) == []
    edited(run.folder, "INSERT INTO leases SELECT worker, NULL, epoch, batch FROM batches LIMIT 1")
    assert not checked(run.folder).ok, "as if a used one had been taken"
