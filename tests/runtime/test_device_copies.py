"""What copies to and from a device took goes from a worker into the run's ledger and summary, if it can be so.

No device is needed: the workers of these runs make the seconds up.
"""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.recorded import checked
from support.scripts import training

MADE_UP = """
if step == 0:
    from msgspec.structs import replace
    from paceline.ipc.messages.worker import StepFinished
    link, say = optimizer.paceline_session.link, optimizer.paceline_session.link.say

    def says(finished, *rest):
        if isinstance(finished, StepFinished):
            finished = replace(finished, to_device={to}, from_device={of})
        say(finished, *rest)

    link.say = says
"""
"""After each step of a worker."""
QUERY = "SELECT worker, step, to_device, from_device FROM step_times"


def test_what_a_worker_says_that_copies_took_is_in_its_step_s_row_whichever_host_it_is_on(launch: Launch) -> None:
    script = training(MADE_UP.format(to="1.0 + me + finished.step / 64", of="finished.step / 4096"), epochs=1)
    run = launch.run(script, "-n", "2", "-p", "bsp", "--emulate-hosts", "2").completed()
    rows = run.rows(QUERY)
    assert {worker for worker, *_ in rows} == set(range(4))
    assert [row[2:] for row in rows] == [(1.0 + worker + step / 64, step / 4096) for worker, step, _, _ in rows]
    for row in run.summary["per_worker"]:
        its = [(to, of) for worker, _, to, of in rows if worker == row["worker"]]
        both = row["to_device_seconds"], row["from_device_seconds"]
        assert both == pytest.approx((sum(to for to, _ in its), sum(of for _, of in its)))
    assert checked(run.folder).wrong is None


def test_a_worker_that_says_copies_took_no_possible_time_is_ended_and_nothing_of_that_is_recorded(
    launch: Launch,
) -> None:
    script = training(MADE_UP.format(to="float('nan') if finished.step == 3 else 1.0", of="0.5"), epochs=1)
    run = launch.run(script, "-n", "1", "-p", "asp")
    assert run.code == 3
    assert "worker 0 is ended: it sent a message that can't be read" in run.err
    assert checked(run.folder).wrong is None
