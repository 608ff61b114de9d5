"""A worker that says what can't be true, or can't be read, is ended; the others go on without it."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.recorded import checked
from support.scripts import training


def test_a_worker_that_says_what_cannot_be_read_or_true_is_ended_and_the_others_go_on(launch: Launch) -> None:
    script = training(
        """
        if step == 2 and me == 1:
            optimizer.paceline_session.link._channel.end.send(b"\\0rubbish")
            signal.pause()
        if step == 2 and me == 2:
            from paceline.ipc.messages.worker import GivenBack
            optimizer.paceline_session.link.say(GivenBack([(0, 999)]))
            signal.pause()
        if step == 2 and me == 3:
            link, say = optimizer.paceline_session.link, optimizer.paceline_session.link.say
            from msgspec.structs import replace
            link.say = lambda finished, *_: say(replace(finished, batches=2 * finished.batches))
        if step == 2 and me == 4:
            link, say = optimizer.paceline_session.link, optimizer.paceline_session.link.say
            from msgspec.structs import replace
            link.say = lambda finished, *_: say(replace(finished, again=[(7, 0)]))
        """
    )
    run = launch.run(script, "-n", "5", "-p", "asp", "--shards", "static").completed()
    assert "worker 1 is ended: it sent a message that can't be read (" in run.err
    assert "worker 2 is ended: it used batch 999 of epoch 0, which it was not leased" in run.err
    assert "worker 3 is ended: it used batch " in run.err
    assert "worker 4 is ended: it used batch 0 of epoch 7, which it was not leased" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished"] + ["died"] * 4
    assert run.summary["samples"] + run.summary["samples_missed"] == 128
    assert "Traceback" not in run.err
    assert (result := checked(run.folder)).ok, result.wrong


OUT_OF_TURN = {
    1: ("messages.worker.AdoptionWritten()", "it sent AdoptionWritten out of turn"),
    2: ("messages.worker.Evaluated(1, {})", "it sent Evaluated out of turn"),
    3: ('messages.worker.OrderDrawn(5, 3, "", [[0]], True, 1)', "it sent OrderDrawn out of turn"),
    4: ("messages.worker.Stepped(7, None)", "it sent Stepped out of turn"),
    5: ('messages.worker.LeaseWanted(0, -3, "")', "it sent a message that can't be read (Expected `int` >= 1"),
    6: ("messages.worker.StoreNotForked('')", "it sent StoreNotForked out of turn"),
}
"""By worker: what it says in its second step, and how the run's end of it is told."""


def test_a_worker_that_speaks_out_of_turn_is_ended_and_the_others_go_on(launch: Launch) -> None:
    messages = ", ".join(f"{worker}: {message}" for worker, (message, _) in OUT_OF_TURN.items())
    script = training(
        f"""
        if step == 2 and me:
            from paceline.ipc import messages
            optimizer.paceline_session.link._channel.send({{{messages}}}[me])
            signal.pause()
        """,
        samples=256,
    )
    run = launch.run(script, "-n", str(1 + len(OUT_OF_TURN)), "-p", "asp", "--shards", "static").completed()
    for worker, (_, why) in OUT_OF_TURN.items():
        assert f"worker {worker} is ended: {why}" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished"] + ["died"] * len(OUT_OF_TURN)
    assert run.summary["samples"] + run.summary["samples_missed"] == 512
    assert "Traceback" not in run.err


@pytest.mark.parametrize("change", ["step=finished.step + 1", "version=finished.version + 1"])
def test_a_worker_that_finishes_what_it_was_not_released_for_is_ended_and_the_others_go_on(
    change: str, launch: Launch
) -> None:
    script = training(
        f"""
        if step == 2 and me == 1:
            from msgspec.structs import replace
            link, say = optimizer.paceline_session.link, optimizer.paceline_session.link.say
            link.say = lambda finished, *_: say(replace(finished, {change}))
        """
    )
    run = launch.run(script, "-n", "2", "-p", "bsp").completed()
    assert "worker 1 is ended: it sent StepFinished out of turn" in run.err
    assert run.summary["samples"] + run.summary["samples_missed"] == 128


def test_a_worker_with_a_replica_that_speaks_out_of_turn_is_ended_and_the_others_go_on(launch: Launch) -> None:
    script = training(
        """
        if step == 2 and me in (1, 2):
            from paceline.ipc import messages
            strange = {1: messages.worker.Stepped(99, None), 2: messages.worker.SnapshotWanted(hold=True)}
            optimizer.paceline_session.link._channel.send(strange[me])
            signal.pause()
        """
    )
    run = launch.run(script, "-n", "4", "-p", "ad-psgd").completed()
    assert "worker 1 is ended: it sent Stepped out of turn" in run.err
    assert "worker 2 is ended: it sent SnapshotWanted out of turn" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died", "died", "finished"]


def test_descriptors_that_no_message_has_end_the_worker_that_sends_them(launch: Launch) -> None:
    script = training(
        """
        if step == 2 and me == 1:
            from paceline.ipc import messages
            optimizer.paceline_session.link._channel.send(messages.worker.ScalarsLogged(2, 1, {}), (0, 1))
            signal.pause()
        """
    )
    run = launch.run(script, "-n", "2", "-p", "asp", "--shards", "static").completed()
    assert "worker 1 is ended: it sent a message that can't be read (ScalarsLogged came with 2 descriptors" in run.err
