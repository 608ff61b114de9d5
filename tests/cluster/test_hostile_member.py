"""Changed messages of a host that has joined: the head goes on, or drops that host in one line."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import msgspec
import pytest

from paceline.errors import MessageUnreadable
from paceline.host import messages as host_messages
from paceline.host.events import Attached, WorkerEnded, WorkerSaid
from paceline.host.machine import Machine
from paceline.ipc import messages
from paceline.ipc.endpoint import Coding
from paceline.net import numbered
from support.run_state import OFFER
from support.world.faults import IN_GROUPS, PROTOCOLS, History, Killed, drawn
from support.world.liar import CODING, LIAR, Liar, changed
from support.world.processes import Wrong
from support.world.world import run

WORLDS, MANY = 16, 1200
MACHINE = Machine("0.1.0", "3.11.7", "2.13.0", "2.4", "native", "AVX2", "AMD", "EPYC", "Linux", 2, "boot")
FINISHED = messages.worker.StepFinished(3, 2, [(0, 1)], [], [{"lr": 0.5}], 100.0, 1.0, 0.5, 0.2, 0.1, 0.1, edits=[])
SAID = [
    host_messages.HostOffer(2, MACHINE, ("127.0.0.1", 7117)),
    host_messages.StandsIn(OFFER),
    WorkerSaid(2, OFFER),
    WorkerSaid(2, FINISHED),
    WorkerSaid(2, messages.worker.OrderDrawn(0, 0, "digest", [[1, 2], ["a", (1, 2)]], True, 4)),
    WorkerSaid(2, messages.worker.ScalarsLogged(1, 1, {"loss": 0.5})),
    WorkerSaid(2, messages.worker.Kept(1, 2, 0, None), Attached("attached by worker 2: 0", 77)),
    WorkerSaid(2, messages.worker.Agrees(1, 0, "first", "yes")),
    WorkerEnded(2, 9),
    host_messages.Printed(2, b"what a worker prints\n"),
    host_messages.Taken(2, 3),
    host_messages.Fetched("node-0", "version", 2, 3, 4096, 0.5),
    host_messages.RangeMade(messages.store.Committed(3, 1 << 60, ("weight", 2))),
    host_messages.RangeNorms(messages.store.Norms(3, [(0, 0.5)])),
    host_messages.Stored((2, 3, "update")),
    host_messages.Reaches("node-2", True),
]


def liars(seed: int) -> History:
    """Draw a run of three hosts, the second of which lies."""
    lots, history, protocols = random.Random(f"liar {seed}"), drawn(seed), [*PROTOCOLS, *IN_GROUPS]
    loads, protocol = lots.random() < 0.7, protocols[seed % len(protocols)]
    script = replace(history.script, loads=loads, looks=0.3, pieces=4, batches=10, epochs=2, starts=0.01, computes=0.05)
    return replace(
        history,
        protocol=protocol,
        script=script,
        hosts=3,
        each=2,
        restart=lots.choice([0, 3]),
        on_loss="continue",
        max_steps=None if loads else 60,
        shards_on=None if protocol in IN_GROUPS else lots.choice([None, "head"]),
        lost=(),
        faults=(Killed(1e9, LIAR, False),),  # so that it may be lost
    )


def lies(seed: int) -> Liar:
    liar = Liar(random.Random(f"lies {seed}"), 0.25)
    try:
        with liar.at_work():
            run(liars(seed))
    except Exception as error:
        if not (isinstance(error, Wrong) and str(error).startswith(("worker 2 ", "worker 3 "))):
            raise AssertionError(f"seed {seed}, after {liar.said[-1:]}: {error}") from error
        # else the liar's own workers are answered what they have not asked
    return liar


@pytest.fixture(autouse=True)
def lied_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of a world lets the head say that a host has said what can't be, and of no error of ours."""
    monkeypatch.setattr("support.world.judge.MAY_SAY", ("has said what can't be", " is ended: "))


def test_the_head_goes_on_whatever_a_host_says_that_has_joined() -> None:
    assert sum(len(lies(seed).said) for seed in range(WORLDS)) > WORLDS


@pytest.mark.parametrize("seed", [404, 1056])
def test_neither_a_version_that_is_not_made_any_more_nor_a_share_without_content_ends_the_head(seed: int) -> None:
    lies(seed)


@pytest.mark.long
def test_the_head_goes_on_whatever_many_hosts_say_that_have_joined() -> None:
    assert sum(lies(seed).changed for seed in range(WORLDS, MANY)) > 5000


def test_five_thousand_changed_messages_are_read_or_refused_in_one_line() -> None:
    lots, read = random.Random(36), 0
    for _ in range(5000):
        plain = changed(lots, lots.choice(SAID), SAID)
        try:
            body = msgspec.msgpack.encode(plain)
        except OverflowError:
            continue
        if lots.random() < 0.3:
            at = lots.randrange(len(body))
            body = body[:at] + lots.randbytes(lots.choice((0, 1, 4))) + body[at + lots.choice((0, 1)) :]
        why = ""
        try:
            message = numbered.Line(host_messages.ToHead).take(numbered.Data(1, 0, body), 0.0)
        except numbered.NeverReadable as error:
            why = str(error)
        else:
            read += 1
            assert CODING.decode(CODING.encode(message), ()) is not None
        assert why.isprintable()
        assert len(why) < 1000
    assert read > 500


TEXTS = {
    *("error", "message", "line", "reason", "why", "digest", "forms", "code", "name", "names", "added", "gradient"),
    *("shared_stream", "attached", "item", "value", "not_finite"),
}
"""Fields with text that is compared or shown, and shown escaped. Records have none of it as it is, but in JSON."""
NUMBERS = {"scalars", "metrics", "metric", "value", "edits", "order", "norms", "checksum", "item"}
"""Fields with numbers that are the script's own: NaN is one of them. Records have no other numbers."""


def test_every_number_and_every_name_that_a_host_says_has_bounds() -> None:
    loose: list[str] = []

    def look(kind: msgspec.inspect.Type, where: str, field: str) -> None:
        match kind:
            case msgspec.inspect.FloatType(ge=ge, gt=gt, le=le) if field not in NUMBERS:
                loose.extend([where] * ((ge is None and gt is None) or le is None))
            case msgspec.inspect.IntType(ge=ge, le=le) if field not in NUMBERS:
                loose.extend([where] * (ge is None or le is None))
            case msgspec.inspect.StrType(pattern=None) if field not in TEXTS | NUMBERS:
                loose.append(where)
            case msgspec.inspect.StructType(cls=cls, fields=fields):
                if cls not in seen:
                    seen.add(cls)
                    for one in fields:
                        look(one.type, f"{cls.__name__}.{one.name}", one.name)
            case msgspec.inspect.UnionType(types=types):
                for one in types:
                    look(one, where, field)
            case msgspec.inspect.ListType(item_type=one) | msgspec.inspect.VarTupleType(item_type=one):
                look(one, where, field)
            case msgspec.inspect.TupleType(item_types=types):
                for one in types:
                    look(one, where, field)
            case msgspec.inspect.DictType(key_type=key, value_type=value):
                look(key, where, field)
                look(value, where, field)

    seen: set[type] = set()
    look(msgspec.inspect.type_info(host_messages.ToHead), "", "")
    assert len(seen) > 60
    assert loose == []


def test_a_list_that_is_too_long_for_its_message_is_refused_unread() -> None:
    names = msgspec.msgpack.encode(
        WorkerSaid(2, messages.worker.ScalarsLogged(1, 1, {str(n): 0.0 for n in range(10_001)}))
    )
    with pytest.raises(MessageUnreadable, match="length <= 10000"):
        Coding(host_messages.ToHead).decode(names, ())


@pytest.mark.parametrize("strange", ["\n", "\x1b", "\x9b", "\u2028", "\u202e", "\u2066"])
def test_no_name_has_a_character_that_moves_what_stands_beside_it(strange: str) -> None:
    for name in (f"a{strange}b", f"{strange}a", f"a{strange}"):
        with pytest.raises(MessageUnreadable, match="matching regex"):
            CODING.decode(CODING.encode(host_messages.Reaches(name, True)), ())


def test_garbage_is_collected_after_a_long_message_as_it_was_before() -> None:
    long = CODING.encode(WorkerSaid(2, messages.worker.ScalarsLogged(1, 1, {f"loss {n}": 0.5 for n in range(9_000)})))
    collected = gc.get_stats()[0]["collections"]
    assert isinstance(CODING.decode(long, ()), WorkerSaid)
    with pytest.raises(MessageUnreadable):
        CODING.decode(long[:-1], ())
    assert gc.isenabled()
    assert gc.get_stats()[0]["collections"] == collected
