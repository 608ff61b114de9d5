"""What ordinary scripts do in runs of several workers: loaders, schedules, checkpoints, decisions and signals."""

from __future__ import annotations

import json
import signal

import pytest
import torch

from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, replayed
from support.scripts import ENDLESS, training


def printed(run: Run, worker: int) -> dict[str, object]:
    """The one line of JSON that the worker has printed."""
    (line,) = (line for line in run.log(worker).splitlines() if line.startswith("{"))
    told: dict[str, object] = json.loads(line)
    return told


SCHEDULED = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

EPOCHS = 3
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * len(loader))
drawn = []
model[2].register_forward_hook(lambda module, given, result: drawn.append(float((result == 0).float().mean())))
loader, plan, model, optimizer = paceline.prepare(loader, plan, model, optimizer, epochs=EPOCHS)
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        plan.step()
    alike = paceline.agree(f"{paceline.worker()} in {epoch}", "first")
mean = model[1].running_mean.tolist()
paceline.finish()
print(json.dumps({"at": plan.last_epoch, "drawn": drawn, "mean": mean, "alike": alike}))
"""


@pytest.mark.parametrize("protocol", ["bsp", "ps-plus"])
def test_schedules_buffers_masks_and_decisions_are_those_of_one_run(protocol: str, launch: Launch) -> None:
    """The loader has processes of its own."""
    run = launch.run(SCHEDULED, "-n", "3", "-p", protocol, "--threads", "1", "--tee", "none").completed()
    told = [printed(run, worker) for worker in range(3)]
    assert [one["at"] for one in told] == [72] * 3, "of 3 epochs of 24 batches"
    assert {one["alike"] for one in told} == {"0 in 2"}
    assert len({tuple(one["drawn"]) for one in told}) == 3, "no two workers draw alike"
    means = torch.tensor([one["mean"] for one in told], dtype=torch.float64)
    torch.testing.assert_close(run.final()["1.running_mean"].double(), means.mean(0), rtol=1e-5, atol=1e-6)
    rates = [rate for (rate,) in run.rows("SELECT json_extract(learning_rates, '$[0]') FROM pushes ORDER BY rowid")]
    assert max(rates) == pytest.approx(0.05, rel=0.05)
    assert min(rates) < 0.005, "the last push may be of a worker that was released long before the end"
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err


SAVES = """
path = os.path.join(sys.argv[1], "state.pt")
if step % 4 == 3:
    torch.save({"worker": me, "model": model.state_dict()}, path)
    assert torch.load(path)["worker"] == me, "each finds its own"
"""


def test_workers_that_save_to_one_path_each_find_their_own_and_worker_0_s_file_is_there(launch: Launch) -> None:
    folder = launch.tmp_path / "saved"
    folder.mkdir()
    launch.run(training(SAVES, epochs=3), "-n", "3", "-p", "asp", args=(str(folder),)).completed()
    assert [file.name for file in folder.iterdir()] == ["state.pt"]
    assert torch.load(folder / "state.pt")["worker"] == 0


HANDLES = training(
    """
    if step == 3:
        tell("trains", me)
    time.sleep(0.01)
    if came:
        break
    """,
    before="""
    came = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    """,
    after="print('saved after', came, len(model.state_dict()))",
    **ENDLESS,
).replace("        step += 1\n", "        step += 1\n    if came:\n        break\n")


def test_a_signal_reaches_the_handler_of_every_worker_and_the_script_ends_as_it_wants_to(launch: Launch) -> None:
    process = launch.start(HANDLES, "-n", "2", "-p", "bsp")
    for worker in range(2):
        launch.events.wait_for("trains", worker)
    process.send_signal(signal.SIGTERM)
    run = ended(process)
    assert run.code == 130, run.err
    assert [run.log(worker) for worker in range(2)] == [f"saved after [{int(signal.SIGTERM)}] 2\n"] * 2
