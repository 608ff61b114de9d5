"""A worker that says what can't be read or true is ended. The others go on without it."""

from __future__ import annotations

from support.launch import Launch
from support.scripts import training
from support.sound import right

SAYS = """
if step == 2 and me:
    from msgspec.structs import replace
    from paceline.ipc import messages
    link, say = optimizer.paceline_session.link, optimizer.paceline_session.link.say
    sent = {
        1: lambda: link._channel.end.send(b"\\0rubbish"),
        2: lambda: say(messages.worker.GivenBack([(0, 999)])),
        3: lambda: link._channel.send(messages.worker.Evaluated(1, {})),
        4: lambda: link._channel.send(messages.worker.ScalarsLogged(2, 1, {}), (0, 1)),
    }
    finishes = {
        5: lambda finished: {"batches": 2 * finished.batches},
        6: lambda finished: {"again": [(7, 0)]},
        7: lambda finished: {"version": finished.version + 1},
    }
    if me in sent:
        sent[me]()
        signal.pause()
    link.say = lambda finished, *_: say(replace(finished, **finishes[me](finished)))
"""
ENDED = {
    1: "it sent a message that can't be read (",
    2: "it used batch 999 of epoch 0, which it was not leased",
    3: "it sent Evaluated out of turn",
    4: "it sent a message that can't be read (ScalarsLogged came with 2 descriptors",
    5: "it used batch ",
    6: "it used batch 0 of epoch 7, which it was not leased",
    7: "it sent StepFinished out of turn",
}
"""By worker: how the run's end of it is told."""


def test_a_worker_that_says_what_cannot_be_read_or_true_is_ended_and_the_others_go_on(launch: Launch) -> None:
    flags = ("-n", str(1 + len(ENDED)), "-p", "asp", "--shards", "static")
    run = launch.run(training(SAYS, samples=256), *flags).completed()
    for worker, why in ENDED.items():
        assert f"worker {worker} is ended: {why}" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished"] + ["died"] * len(ENDED)
    assert run.summary["samples"] + run.summary["samples_missed"] == 512
    assert "Traceback" not in run.err
    right(run)
