"""Rounds of own steps in real runs: what becomes of a round that its worker doesn't end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.runs import run
from support.scripts import script
from support.sound import sound

pytestmark = pytest.mark.real_run

STOPS = script("""
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for number, (x, y) in enumerate(loader, 1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if number == 6:
        break
if sys.argv[1] == "finishes":
    paceline.finish()
""")

GOES_ON = script("""
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in range(12):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""")


@pytest.mark.parametrize("how", ["ends", "finishes"])
@pytest.mark.parametrize("hosts", ["one host", "two hosts"])
def test_a_script_that_ends_in_the_middle_of_a_round_has_its_own_steps_in_the_last_version(
    how: str, hosts: str, tmp_path: Path
) -> None:
    """Though it says nothing of the step that it was released for. With 6 steps each and rounds of 4, 2 are left."""
    spread = ("--emulate-hosts", "2", "-n", "1") if hosts == "two hosts" else ("-n", "2")
    flags = ("-p", "local-sgd:every=4", *spread, "--threads", "1", "--epochs", "2")
    ended = run(STOPS, *flags, args=[how], tmp_path=tmp_path).completed()
    assert (ended.summary["steps"], ended.summary["versions"]) == (12, 2)
    sound(ended)


DIES = """
[cluster]
compute = "20ms"

[[event]]
worker = 1
at_step = 6
kill = true
rejoin_after = "0.1s"
"""


def test_a_worker_that_comes_back_takes_part_from_the_next_round_on(tmp_path: Path) -> None:
    """What it had done in its open round is used again by others."""
    (tmp_path / "dies.toml").write_text(DIES)
    flags = ("-p", "diloco:every=4", "-n", "2", "--threads", "1", "--scenario", str(tmp_path / "dies.toml"))
    ended = run(GOES_ON, *flags, tmp_path=tmp_path).completed()
    assert ended.summary["samples"] == 12 * 200
    assert ended.summary["per_worker"][1]["steps"] > 4, "the first round's, and those since it is back"
    sound(ended)
