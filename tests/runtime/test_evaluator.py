"""Evaluating recorded versions: in a process of its own while workers train, or in workers once they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import RunFailed
from paceline.host.evaluator import Evaluator
from paceline.host.events import EvaluatorLost, HostEvent
from paceline.ipc import messages
from paceline.ipc.channel import Channel, attached
from paceline.ipc.loop import Loop
from support.launch import Launch
from support.scripts import ENDLESS, training


class Spare:
    """An evaluator, the other end of its channel, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[HostEvent] = []
        self.loop = Loop()
        self.evaluator = Evaluator(self.loop, self.told.append)
        self.process = Channel(self.evaluator.connect(), messages.worker.ToEvaluator, "the coordinator")

    def recorded(self, version: int) -> None:
        """This version is on disk."""
        file = self.folder / f"{version}.safetensors"
        file.write_text(f"version {version}")
        self.evaluator.recorded(version, str(file))

    def asked(self) -> list[int]:
        """Versions that the process was told to evaluate since this was last asked. Its file came along with each."""
        found = []
        while self.process.ready(0):
            order, (file,) = self.process.receive()
            assert attached(file) == f"version {order.version}".encode()
            found.append(order.version)
        return found

    def says(self, message: messages.worker.Evaluated | messages.worker.EvaluationFailed) -> None:
        self.process.send(message)
        self.loop.wait(0.0)


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[Spare]:
    spare = Spare(tmp_path)
    yield spare
    spare.evaluator.end()
    spare.process.close()
    spare.loop.close()


def test_versions_are_evaluated_one_at_a_time_in_the_order_in_which_they_are_recorded(spare: Spare) -> None:
    assert spare.evaluator.idle
    for version in (2, 4, 9):
        spare.recorded(version)
    assert spare.asked() == [2]
    spare.says(messages.worker.Evaluated(2, {"loss": 0.5}))
    assert spare.asked() == [4]
    spare.says(messages.worker.Evaluated(4, {}))
    assert not spare.evaluator.idle
    spare.says(messages.worker.Evaluated(9, {"loss": 0.25}))
    measured = {2: {"loss": 0.5}, 4: {}, 9: {"loss": 0.25}}
    assert spare.told == [messages.worker.Evaluated(version, metrics) for version, metrics in measured.items()]
    assert spare.evaluator.idle


def test_what_evaluate_raises_is_told_and_nothing_more_is_evaluated(spare: Spare) -> None:
    spare.recorded(1)
    spare.recorded(2)
    failed = messages.worker.EvaluationFailed(1, "NameError: data")
    spare.says(failed)
    assert (spare.told, spare.asked(), spare.evaluator.idle) == ([failed], [1], True)


def test_nobody_waits_for_an_evaluator_that_has_died(spare: Spare) -> None:
    spare.recorded(1)
    spare.process.close()
    spare.loop.wait(0.0)
    spare.recorded(2)
    assert (spare.told, spare.evaluator.idle) == ([EvaluatorLost()], True)
    spare.evaluator.end()  # as at the run's end


@pytest.mark.parametrize(
    "message",
    [messages.worker.Evaluated(1, {}), messages.worker.Evaluated(3, {}), messages.worker.EvaluationFailed(3, "")],
)
def test_an_evaluator_that_answers_what_it_was_not_asked_is_let_go(
    message: messages.worker.Evaluated | messages.worker.EvaluationFailed, spare: Spare
) -> None:
    spare.recorded(1)
    spare.says(first := messages.worker.Evaluated(1, {}))
    spare.says(message)
    assert (spare.told, spare.evaluator.idle) == ([first, EvaluatorLost()], True)


def test_a_recorded_version_that_is_there_no_more_is_named(spare: Spare) -> None:
    with pytest.raises(RunFailed, match=r"/gone\.safetensors can't be read any more: No such file or directory"):
        spare.evaluator.recorded(1, str(spare.folder / "gone.safetensors"))


COUNTING = """
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.made = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return -self.made
model = Counts()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
beginning = os.getpid()
def evaluate(model):
    print("evaluates", os.getpid() == beginning, file=open("evaluated", "a"))
    time.sleep(0.05)
    return {"made": model.made.item()}
"""
"""A model whose parameter is the number of its version."""


def test_a_run_ends_when_a_version_meets_the_target_and_is_such_as_check_expects(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(launch.tmp_path)
    script = training(before=COUNTING, **ENDLESS).replace("(model(x) - y).square().mean()", "model(x)")
    flags = ("-n", "2", "-p", "asp", "--record", "10", "--target", "made>=12", "--stop-at-target")
    run = launch.run(script, *flags).completed()
    summary = run.summary
    assert summary["outcome"] == "completed"
    assert summary["versions"] < 100_000, "it would have made 300,000"
    assert "--stop-at-target: made>=12 is reached: ending the run" in run.err
    evaluations = summary["evaluations"]
    assert [row["made"] for row in evaluations] == [row["version"] for row in evaluations]
    assert [row["version"] for row in evaluations] == [
        version for (version,) in run.rows("SELECT version FROM versions")
    ]
    met = next(row for row in evaluations if row["made"] >= 12)
    assert summary["targets"] == {"made>=12": {"at_seconds": met["at_seconds"], "samples": met["samples"]}}
    in_the_worker, *others = Path("evaluated").read_text().splitlines()  # the first call asks for the metrics' names
    assert (in_the_worker, set(others)) == ("evaluates True", {"evaluates False"})
    assert main(["check", str(run.folder)]) == 0


WAITS = """
beginning = os.getpid()
def evaluate(model):
    while os.getpid() != beginning and not os.path.exists(__file__ + ".go"):
        time.sleep(0.01)
    return {"bias": model.bias.sum().item()}
"""


def test_a_run_that_goes_on_evaluates_first_what_it_had_recorded_before(launch: Launch) -> None:
    ends = "if step == 9 and me == 0 and not paceline.resumed(): os.kill(os.getppid(), signal.SIGTERM)"
    script = launch.tmp_path / "train.py"
    script.write_text(training(ends, before=WAITS))
    flags = ("-n", "2", "-p", "bsp", "--target", "bias>=1e9", "--stop-at-target", "--checkpoint", "2")
    stopped = launch.run(script, *flags)
    assert stopped.code == 130, stopped.err
    before = [version for (version,) in stopped.rows("SELECT version FROM versions ORDER BY version")]
    assert before
    assert stopped.rows("SELECT * FROM evaluations") == []
    (launch.tmp_path / "train.py.go").touch()
    resumed = launch.resume(stopped.folder).completed()
    versions = [version for (version,) in resumed.rows("SELECT version FROM versions ORDER BY version")]
    assert versions[: len(before)] == before
    assert [version for (version,) in resumed.rows("SELECT version FROM evaluations ORDER BY rowid")] == versions
    assert main(["check", str(resumed.folder)]) == 0


# --- by workers, after training

EVALUATE = """
seen = []
def evaluate(model):
    seen.append(1)
    if len(seen) == {calls} and me in {doomed}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"by": me}}
"""


@pytest.mark.parametrize("doomed", [(0, 1), (0, 1, 2)])
def test_a_version_whose_evaluator_died_is_evaluated_by_the_next_worker(
    doomed: tuple[int, ...], launch: Launch
) -> None:
    script = training(before=EVALUATE.format(calls=2, doomed=doomed), epochs=1)
    run = launch.run(script, "-n", "3", "-p", "asp")
    for worker in doomed:
        assert f"worker {worker} died (killed by SIGKILL) while it evaluated a version" in run.err
    versions = [version for (version,) in run.rows("SELECT version FROM versions ORDER BY version")]
    evaluated = [(row["version"], row["by"]) for row in run.summary["evaluations"]]
    assert [version for version, _ in evaluated] == versions[: len(evaluated)]
    if len(doomed) < 3:
        assert [by for _, by in evaluated] == [0, 1, 2, 2]
        assert run.code == 0
        assert run.summary["outcome"] == "completed"
    else:
        assert [by for _, by in evaluated] == [0, 1, 2]
        assert run.code == 3
        left = "worker 2 died (killed by SIGKILL) while it evaluated a version, and no other worker is left to do so"
        assert run.summary["error"] == left


def test_versions_that_nobody_is_left_to_evaluate_fail_the_run(launch: Launch) -> None:
    script = training(before=EVALUATE.format(calls=0, doomed=()), epochs=1, after="os._exit(0)")
    run = launch.run(script, "-n", "2", "-p", "asp")
    assert run.code == 3
    assert run.summary["error"] == "no worker is left to evaluate the recorded versions: all processes have ended"
    assert run.summary["evaluations"] == []
