"""A worker that says what can't be true, or can't be read, is ended; the others go on without it."""

from __future__ import annotations

from support.launch import Launch
from support.scripts import training


def test_a_worker_that_says_what_cannot_be_read_or_true_is_ended_and_the_others_go_on(launch: Launch) -> None:
    script = training(
        """
        if step == 2 and me == 1:
            optimizer.paceline_session.link._channel.end.send(b"\\0rubbish")
            signal.pause()
        if step == 2 and me == 2:
            from paceline.core.leases import Batch
            optimizer.paceline_session.link.give_back((Batch(0, 999),))
            signal.pause()
        if step == 2 and me == 3:
            link, pushed = optimizer.paceline_session.link, optimizer.paceline_session.link.pushed
            from dataclasses import replace
            link.pushed = lambda finished: pushed(replace(finished, batches=2 * finished.batches))
        """
    )
    run = launch.run(script, "-n", "4", "-p", "asp").completed()
    assert "worker 1 is ended: it sent a message that can't be read (" in run.err
    assert "worker 2 is ended: it used batch 999 of epoch 0, which it was not leased" in run.err
    assert "worker 3 is ended: it used batch " in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died", "died", "died"]
    assert run.summary["samples"] + run.summary["samples_missed"] == 128
    assert "Traceback" not in run.err


def test_descriptors_that_no_message_has_end_the_worker_that_sends_them(launch: Launch) -> None:
    script = training(
        """
        if step == 2 and me == 1:
            from paceline.runtime import messages
            optimizer.paceline_session.link._channel.send(messages.Logged(2, {}), (0, 1))
            signal.pause()
        """
    )
    run = launch.run(script, "-n", "2", "-p", "asp").completed()
    assert "worker 1 is ended: it sent a message that can't be read (Logged came with 2 descriptors" in run.err
