"""The loop of docs/habits.md, as it stands there: validation, schedule, checkpoints, early stopping."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.cli.main import main
from support.launch import Launch
from support.scripts import script
from support.suites import each

PAGE = Path(__file__).parents[2] / "docs" / "habits.md"
BEFORE = script("""
from torch.utils.tensorboard import SummaryWriter

os.chdir(os.path.dirname(__file__))
EPOCHS, PATIENCE = 8, int(sys.argv[1])
torch.manual_seed(0)
points = torch.randn(320, 4)
classes = (points @ torch.randn(4, 3)).argmax(1)
held_out, labels = points[256:], classes[256:]
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(points[:256], classes[:256]), batch_size=8, shuffle=True)
""")


def usual_loop() -> str:
    text = PAGE.read_text().partition("<!-- run by tests/habits/test_usual_loop.py -->\n```python\n")[2]
    return BEFORE + text.partition("```")[0]


def tracked(folder: Path) -> list[float]:
    found = EventAccumulator(str(folder / "logs"))
    found.Reload()
    return [one.value for one in found.Scalars("val_acc")]


@pytest.mark.parametrize("protocol", each(["bsp", "asp", "all-reduce", "ad-psgd"], long=["asp", "all-reduce"]))
def test_the_usual_loop_runs_as_the_page_shows_it(protocol: str, launch: Launch) -> None:
    run = launch.run(usual_loop(), "-n", "2", "-p", protocol, args=("100",)).completed()
    script_s = run.folder.parent
    best = torch.load(script_s / "best.pt")["accuracy"]
    values = [value for (value,) in run.rows("SELECT value FROM scalars WHERE name = 'val_acc' AND worker = 0")]
    assert max(values) == best
    assert tracked(script_s) == pytest.approx(values)
    assert torch.load(script_s / "last.pt").keys() == {"weight", "bias"}
    assert run.summary["samples"] == 8 * 256
    assert main(["check", str(run.folder)]) == 0


@pytest.mark.parametrize("protocol", each(["asp", "bsp", "ripples"], long=["bsp", "ripples"]))
def test_its_early_stop_has_both_workers_leave_after_the_same_epoch(protocol: str, launch: Launch) -> None:
    script = usual_loop().replace("max(history, key=history.get)", "0")
    run = launch.run(script, "-n", "2", "-p", protocol, args=("2",)).completed()
    assert run.summary["samples"] == 3 * 256
    assert "has left the training" not in run.err


def test_it_goes_on_with_the_best_that_it_had(launch: Launch) -> None:
    script = usual_loop().replace(
        "    if epoch == best:", "    print('epoch', epoch, best, *history)\n    if epoch == best:"
    )
    first = launch.run(script, "-n", "2", "-p", "bsp", "--checkpoint", "64", "--max-steps", "100", args=("100",))
    assert first.code == 0, first.err
    again = launch.resume(first.folder, "--max-steps", "1000").completed()
    epochs = [list(map(int, line.split()[1:])) for line in again.out.splitlines() if line.startswith("epoch")]
    assert epochs[0][0] > 0
    assert [known for _, _, *known in epochs] == [list(range(epoch + 1)) for epoch, *_ in epochs]
