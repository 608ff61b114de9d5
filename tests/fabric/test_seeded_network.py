"""The seeded network of the tests does what it says, or histories over it would show little."""

from __future__ import annotations

import pytest

from support.seeded_network import Blocked, Cut, Fault, Faults, Garbled, Killed, Network, Paused, shrunk, tried

Heard = tuple[float, str]


class Talker:
    """Notes what happens to it. `a` dials `b`."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.heard: list[Heard] = []
        self.connections: list[int] = []
        self.wakes: float | None = None

    def connected(self, connection: int, now: float) -> None:
        self.connections.append(connection)

    def received(self, connection: int, data: bytes, now: float) -> None:
        self.heard += [(now, letter) for letter in data.decode("latin-1")]

    def lost(self, connection: int, why: str, now: float) -> None:
        self.heard.append((now, why))

    def tick(self, now: float) -> None:
        self.heard.append((now, "tick"))
        self.wakes = None

    def due(self) -> float | None:
        return self.wakes

    def say(self, text: str) -> None:
        self.network.write(self.name, self.connections[-1], text.encode())

    @property
    def text(self) -> str:
        return "".join(letter for _, letter in self.heard)


def two(*faults: Fault, seed: int = 1) -> tuple[Network, Talker, Talker]:
    """Two nodes, connected within the first second."""
    network = Network(seed, faults)
    a, b = Talker(network, "a"), Talker(network, "b")
    network.add("a", lambda: a)
    network.add("b", lambda: b)
    network.dial("a", 1, "b")
    assert network.run(lambda: bool(a.connections and b.connections), most=1.0)
    return network, a, b


def passes(network: Network, until: float) -> None:
    network.run(lambda: False, most=until)


def test_bytes_arrive_in_order_after_a_while_and_the_same_under_the_same_seed() -> None:
    heard = []
    for seed in (1, 1, 2):
        network, a, b = two(seed=seed)
        for text in ("one ", "two ", "three"):
            a.say(text)
        passes(network, 5.0)
        assert b.text == "one two three"
        heard.append(b.heard)
    assert heard[0] == heard[1] != heard[2]


def test_what_is_blocked_one_way_comes_later_and_the_other_way_is_open() -> None:
    network, a, b = two(Blocked(1.0, 10.0, "a", "b"))
    passes(network, 2.0)
    a.say("a")
    b.say("b")
    passes(network, 9.9)
    assert (a.text, b.text) == ("b", "")
    passes(network, 12.0)
    assert b.text == "a"
    assert b.heard[0][0] >= 10.0


def test_a_cut_loses_what_is_on_its_way_and_may_be_heard_at_one_end_only() -> None:
    network, a, b = two(Blocked(1.0, 10.0, "a", "b"), Cut(5.0, "a", "b", (0.5, None)))
    passes(network, 2.0)
    a.say("lost")
    passes(network, 30.0)
    a.say("later")
    b.say("too")
    passes(network, 60.0)
    assert a.heard == [(5.5, "reset")]
    assert b.heard == []


@pytest.mark.parametrize("ticks_first", [False, True])
def test_a_paused_node_hears_all_at_once_when_it_goes_on(ticks_first: bool) -> None:
    network, a, b = two(Paused(1.0, 10.0, "b", ticks_first))
    passes(network, 2.0)
    b.wakes = 3.0
    a.say("x")
    passes(network, 9.9)
    assert b.heard == []
    passes(network, 10.1)
    assert [what for _, what in b.heard] == (["tick", "x", "tick"] if ticks_first else ["x", "tick"])


@pytest.mark.parametrize(("silently", "heard"), [(False, ["end of file"]), (True, [])])
def test_a_killed_process_is_heard_of_unless_its_machine_goes_too(silently: bool, heard: list[str]) -> None:
    network, a, _ = two(Killed(1.0, "b", silently, back=None))
    passes(network, 5.0)
    assert [what for _, what in a.heard] == heard
    network.dial("a", 2, "b")
    passes(network, 10.0)
    assert a.heard[-1][1] == "refused"


@pytest.mark.parametrize(("how", "text"), [("double", "one one two"), ("swap", "twoone "), ("noise", "\xc1one two")])
def test_what_is_garbled_is_one_whole_write(how: str, text: str) -> None:
    network, a, b = two(Garbled(1.0, "a", "b", how))
    passes(network, 2.0)
    a.say("one ")
    a.say("two")
    passes(network, 5.0)
    assert b.text.endswith(text)


def test_healing_ends_every_fault_and_no_other_begins() -> None:
    faults = (Blocked(1.0, 99.0, "a", "b"), Paused(1.0, 99.0, "a", False), Cut(8.0, "a", "b", (0.0, 0.0)))
    network, a, b = two(*faults)
    passes(network, 5.0)
    a.say("x")
    b.say("y")
    network.heal()
    passes(network, 10.0)
    assert (a.text.replace("tick", ""), b.text) == ("y", "x")


def test_a_process_that_is_always_due_is_named_as_such() -> None:
    network, a, _ = two()
    a.tick = lambda now: None  # type: ignore[method-assign]
    a.wakes = 2.0
    network.on("a", lambda: None)
    with pytest.raises(AssertionError, match="turns in circles"):
        passes(network, 5.0)


FAULTS = Faults(pairs=(("a", "b"),), mortal=("a",), pausing=("b",))


def test_a_seed_draws_the_same_faults_again_and_all_kinds_are_drawn() -> None:
    assert FAULTS.drawn(7) == FAULTS.drawn(7)
    assert {type(fault).__name__ for seed in range(50) for fault in FAULTS.drawn(seed)} == {
        *("Blocked", "Cut", "Garbled", "Killed", "Paused", "Slow"),
    }


def test_a_failing_seed_is_named_with_the_fewest_faults_that_it_fails_with() -> None:
    def history(seed: int, faults: list[Fault]) -> None:
        kinds = {type(fault) for fault in faults}
        assert not {Cut, Killed} <= kinds, "a cut and a death"

    seed = next(seed for seed in range(100) if {Cut, Killed} < {type(fault) for fault in FAULTS.drawn(seed)})
    with pytest.raises(AssertionError) as raised:
        tried(seed, FAULTS, history)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"seed {seed} fails with 2 of {len(FAULTS.drawn(seed))} faults:"
    assert sorted(line.split("(")[0].strip() for line in lines[1:3]) == ["Cut", "Killed"]
    assert lines[3].startswith("a cut and a death")


def test_shrinking_keeps_the_last_failure() -> None:
    faults: list[Fault] = [Garbled(float(number), "a", "b", "swap") for number in range(4)]

    def history(left: list[Fault]) -> None:
        assert faults[2] not in left, f"with {len(left)}"

    left, failure = shrunk(faults, AssertionError("first"), history)
    assert left == [faults[2]]
    assert str(failure).startswith("with 1")
