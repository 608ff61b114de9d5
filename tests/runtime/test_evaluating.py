"""Evaluation after training: a worker that dies of it is replaced by another one, as long as there is one."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.scripts import training

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
