"""Scenario files: what they may say, what is told of a mistake, and what the plan is that follows from them."""

from __future__ import annotations

import math
import os
import pickle
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from paceline.core.scenario import Kill, Network, Scenario, Slowdown, duration, load, rate, size
from paceline.errors import ConfigError

EXAMPLE = """
[cluster]
workers = 8
nodes = 2
compute = "400ms"
jitter = 0.05
[network]
bandwidth = "1Gbit/s"
latency = "50us"
message = "25MB"
incast = 0.5
[[worker]]
index = 3
speed = 0.25
[[event]]
worker = 2
at = "10s"
for = "5s"
every = "40s"
slow = 4.0
[[event]]
worker = 1
at_step = 50
kill = true
"""


@pytest.fixture
def written(tmp_path):
    """Writes a scenario file and gives back its path."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "slow.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def refusal(call, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message.isprintable(), "the message is one line"
    return message


# What a file says


def test_every_key_of_the_design_is_read(written):
    path = written(EXAMPLE)
    scenario = load(path)
    assert scenario == Scenario(
        workers=8,
        nodes=2,
        compute=0.4,
        jitter=0.05,
        network=Network(bandwidth=125e6, latency=50e-6, message=25_000_000, incast=0.5),
        speeds={3: 0.25},
        events=(Slowdown(worker=2, at=10.0, for_=5.0, every=40.0, factor=4.0), Kill(worker=1, at_step=50)),
    )
    assert scenario.path == str(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "[cluster]\n", "\ufeff[cluster]\nnodes = 1\n"])
def test_a_file_that_says_nothing_is_the_empty_scenario(written, text):
    assert load(written(text)) == Scenario()


def test_in_the_empty_scenario_nothing_is_slow():
    empty = Scenario()
    assert empty.step_seconds(5, 9, 100.0, 0.37, 1) == 0.37
    assert not empty.kills_at_step(0, 0)
    assert empty.kills_by_time() == ()
    assert empty.checked_for_real_run() is empty


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("400ms", 0.4),
        ("10s", 10.0),
        ("50us", 50e-6),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5s", 1.5),
        ("0.1ms", 1e-4),
        ("3 s", 3.0),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_in_seconds_to_the_last_bit(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [
        ("1Gbit/s", 125e6),
        ("100Mbit/s", 12.5e6),
        ("8kbit/s", 1000.0),
        ("8Kbit/s", 1000.0),
        ("8bit/s", 1.0),
        ("10MB/s", 10e6),
        ("1GB/s", 1e9),
        ("1kB/s", 1e3),
    ],
)
def test_a_rate_is_in_bytes_a_second(text, bytes_a_second):
    assert rate(text) == bytes_a_second


@pytest.mark.parametrize(("text", "count"), [("25MB", 25_000_000), ("1.5KB", 1500), ("1kB", 1000), ("0B", 0)])
def test_a_size_is_in_bytes_of_which_a_thousand_make_a_kilobyte(text, count):
    assert size(text) == count
    assert type(size(text)) is int


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *[(duration, text) for text in ("5 parsecs", "5", "s", "", "-5s", "1e3s", "5S", "5s\n", "٣s", "1 m 2s", 5)],
        *[(duration, "1" + "0" * 400 + "s"), (duration, "1000000000000000000.1s"), (duration, ".5s")],
        *[(rate, text) for text in ("1Gb/s", "1gbit/s", "1Gbps", "1GB", "1Mb/s", "-1GB/s", "inf", 1e9)],
        *[(size, text) for text in ("25mb", "25MiB", "25", "0.5B", "-1MB", "25MB/s", 25)],
    ],
)
def test_a_quantity_without_number_and_known_unit_is_refused(parse, text):
    message = refusal(parse, text, "here")
    assert message.startswith("here is ")


# Mistakes


def event(*lines: str) -> str:
    """A file whose second event is the one of interest."""
    return "\n".join(["[[event]]", "worker = 0", "at_step = 1", "slow = 2.0", "[[event]]", *lines])


def slow(*lines: str) -> str:
    return event("worker = 1", "slow = 4.0", *lines)


MISTAKES = [
    # what is wrong, the file, what the message must hold
    ("unknown table", "[netwrok]", ["unknown table", '"netwrok"', 'did you mean "network"', "[[event]]"]),
    ("a table for a number", "[[workers]]\nindex = 0", ["unknown table", 'did you mean "worker"']),
    ("unknown key", "[cluster]\ncomptue = 1", ["cluster", '"comptue"', 'did you mean "compute"', "known: workers"]),
    ("unknown key far from all", "[cluster]\nzzz = 1", ["cluster", '"zzz"', "known: workers, nodes"]),
    ("unknown key of a network", "[network]\nlatencey = 1", ["network", 'did you mean "latency"']),
    ("unknown key of a worker", "[[worker]]\nindex = 0\nspede = 1", ["worker table 1", 'did you mean "speed"']),
    ("unknown key of an event", slow('at = "1s"', "fro = 1"), ["event 2", '"fro"', 'did you mean "for"']),
    ("key outside its table", "workers = 8", ['unknown key "workers"', "it belongs in [cluster]"]),
    ("key in another table", '[cluster]\nbandwidth = "1GB/s"', ['"bandwidth"', "it belongs in [network]"]),
    ("key that holds a line break", '[cluster]\n"a\\nb" = 1', [r'"a\nb"']),
    ("workers below 1", "[cluster]\nworkers = 0", ["cluster.workers is 0", "at least 1"]),
    ("workers as text", '[cluster]\nworkers = "8"', ['cluster.workers is "8"', "whole number"]),
    ("workers as a truth", "[cluster]\nworkers = true", ["cluster.workers is true", "whole number"]),
    ("workers with a fraction", "[cluster]\nworkers = 8.0", ["cluster.workers is 8.0", "whole number"]),
    ("workers beyond reason", f"[cluster]\nworkers = 0x{'f' * 5000}", ["cluster.workers is", "whole number"]),
    ("nodes below 1", "[cluster]\nnodes = 0", ["cluster.nodes is 0", "at least 1"]),
    ("a bare number for a duration", "[cluster]\ncompute = 0.4", ["cluster.compute is 0.4", "in quotes", '"400ms"']),
    ("a unit that is none", '[cluster]\ncompute = "5 parsecs"', ['cluster.compute is "5 parsecs"', "us, ms, s, m, h"]),
    ("a step of no length", '[cluster]\ncompute = "0s"', ['cluster.compute is "0s"', "longer than nothing"]),
    ("negative jitter", "[cluster]\njitter = -0.1", ["cluster.jitter is -0.1", "from 0"]),
    ("jitter that is no number", "[cluster]\njitter = nan", ["cluster.jitter is nan", "from 0"]),
    ("jitter without end", "[cluster]\njitter = inf", ["cluster.jitter is inf", "to 10"]),
    ("jitter as percent", "[cluster]\njitter = 15", ["cluster.jitter is 15", "to 10", "0.05 is 5 %"]),
    ("jitter as a truth", "[cluster]\njitter = true", ["cluster.jitter is true", "number"]),
    ("cluster twice over", "[[cluster]]\nworkers = 1", ["cluster is an array", "[cluster]"]),
    ("network as a number", "network = 3", ["network is 3", "[network]"]),
    ("bandwidth in no unit", '[network]\nbandwidth = "1Gbps"', ['network.bandwidth is "1Gbps"', "Gbit/s"]),
    ("bandwidth of a number", "[network]\nbandwidth = 1e9", ["network.bandwidth is 1000000000.0", "Gbit/s"]),
    ("no bandwidth", '[network]\nbandwidth = "0MB/s"', ['network.bandwidth is "0MB/s"', "more than 0"]),
    ("negative latency", '[network]\nlatency = "-1us"', ['network.latency is "-1us"', "ms"]),
    ("half a byte", '[network]\nmessage = "0.5B"', ['network.message is "0.5B"', "whole number of bytes"]),
    ("incast above 1", "[network]\nincast = 1.5", ["network.incast is 1.5", "at most 1"]),
    ("incast of 0", "[network]\nincast = 0", ["network.incast is 0", "above 0"]),
    ("one worker in single brackets", "[worker]\nindex = 0", ["worker is a table", "[[worker]]"]),
    ("events that are no tables", "event = [1]", ["event 1: it is 1", "[[event]]"]),
    ("speed 0", "[[worker]]\nindex = 3\nspeed = 0", ["worker table 1: speed is 0", "above 0"]),
    ("negative speed", "[[worker]]\nindex = 3\nspeed = -1.5", ["worker table 1: speed is -1.5", "above 0"]),
    ("speed as text", '[[worker]]\nindex = 3\nspeed = "x"', ['worker table 1: speed is "x"', "number"]),
    ("no speed", "[[worker]]\nindex = 3", ["worker table 1: speed is missing", "speed = 0.25"]),
    ("no index", "[[worker]]\nspeed = 1", ["worker table 1: index is missing", "index = 3"]),
    ("negative index", "[[worker]]\nindex = -1\nspeed = 1", ["worker table 1: index is -1", "at least 0"]),
    (
        "one worker, two tables",
        "[[worker]]\nindex = 1\nspeed = 1\n[[worker]]\nindex = 3\nspeed = 1\n[[worker]]\nindex = 3\nspeed = 2",
        ["worker table 3: index is 3", "worker table 2 has that worker"],
    ),
    ("an event of nobody", event("slow = 4.0", "at_step = 1"), ["event 2: worker is missing", "worker = 2"]),
    ("neither at nor at_step", slow(), ["event 2: at or at_step is missing", 'at = "10s" or at_step = 50']),
    (
        "both at and at_step",
        slow('at = "1s"', "at_step = 5"),
        ['event 2: at is "1s"', "at_step is 5", "one of the two"],
    ),
    ("neither slow nor kill", event("worker = 1", "at_step = 1"), ["event 2: slow or kill is missing", "kill = true"]),
    ("both slow and kill", slow("at_step = 1", "kill = true"), ["event 2: slow is 4.0", "kill is true"]),
    ("kill that is not true", event("worker = 1", "at_step = 1", "kill = false"), ["event 2: kill is false"]),
    ("kill as a number", event("worker = 1", "at_step = 1", "kill = 1"), ["event 2: kill is 1", "kill = true"]),
    (
        "kill for a while",
        event("worker = 1", 'at = "1s"', "kill = true", 'for = "5s"'),
        ['event 2: for is "5s"', "stays away"],
    ),
    (
        "kill for some steps",
        event("worker = 1", "at_step = 1", "kill = true", "for_steps = 5"),
        ["event 2: for_steps is 5", "stays away"],
    ),
    (
        "kill again and again",
        event("worker = 1", 'at = "1s"', "kill = true", 'every = "5s"'),
        ['event 2: every is "5s"', "stays away"],
    ),
    ("no servers", "[network]\nservers = 0", ["network.servers is 0", "at least 1"]),
    ("no link of its own", '[network]\nworker_bandwidth = "0bit/s"', ["network.worker_bandwidth", "more than 0"]),
    (
        "rejoining after no duration",
        event("worker = 1", 'at = "1s"', "kill = true", 'rejoin_after = "soon"'),
        ['event 2: rejoin_after is "soon"', "us, ms, s, m, h"],
    ),
    (
        "rejoining of the slow",
        slow('at = "1s"', 'rejoin_after = "3s"'),
        ['event 2: rejoin_after is "3s"', "leave it out"],
    ),
    ("slow below 1", event("worker = 1", "at_step = 1", "slow = 0.5"), ["event 2: slow is 0.5", "at least 1"]),
    ("slow without end", event("worker = 1", "at_step = 1", "slow = inf"), ["event 2: slow is inf", "at least 1"]),
    ("negative at_step", slow("at_step = -1"), ["event 2: at_step is -1", "at least 0"]),
    ("at as a number", slow("at = 10"), ["event 2: at is 10", "in quotes"]),
    ("an odd length", slow('at = "1s"', 'for = "5 parsecs"'), ['event 2: for is "5 parsecs"', "us, ms, s, m, h"]),
    ("no length", slow('at = "1s"', 'for = "0s"'), ['event 2: for is "0s"', "longer than nothing"]),
    ("no steps", slow("at_step = 1", "for_steps = 0"), ["event 2: for_steps is 0", "at least 1"]),
    (
        "two lengths",
        slow('at = "1s"', 'for = "5s"', "for_steps = 5"),
        ['event 2: for is "5s"', "for_steps is 5", "one of the two"],
    ),
    (
        "time from a step on",
        slow("at_step = 7", 'for = "5s"'),
        ['event 2: for is "5s"', "at_step is 7", "for_steps"],
    ),
    (
        "steps from a time on",
        slow('at = "7s"', "for_steps = 5"),
        ["event 2: for_steps is 5", 'at is "7s"', "for with at"],
    ),
    (
        "repeated from a step on",
        slow("at_step = 7", "for_steps = 5", 'every = "9s"'),
        ['event 2: every is "9s"', "at_step is 7"],
    ),
    ("repeated without an end", slow('at = "1s"', 'every = "9s"'), ['event 2: every is "9s"', "for"]),
    (
        "repeated without a pause",
        slow('at = "1s"', 'for = "9s"', 'every = "9s"'),
        ['event 2: every is "9s"', 'for is "9s"', "longer than for"],
    ),
    ("value that holds line breaks", '[cluster]\ncompute = "1\\n\\u2028s"', [r'"1\n\u2028s"']),
    ("value that is long", f'[cluster]\ncompute = "{"x" * 9999}"', ['cluster.compute is "xxx', "…"]),
    ("no TOML", "[cluster]\nnodes = 1\ncompute = 400ms", ["line 3 is not valid TOML", "quotes"]),
    ("no end", '[cluster]\nnodes = 1\ncompute = """abc\n', ["line 3 is not valid TOML"]),
    ("a table twice", "[cluster]\n[network]\n[cluster]", ["line 3 is not valid TOML"]),
    ("too much nesting", "a = " + "[" * 100_000, ["not valid TOML"]),
    ("a number too long", "a = " + "9" * 100_000, ["not valid TOML"]),
    ("no UTF-8", b"[cluster]\nnodes = 1 # \xe9\n", ["line 2 holds the byte 0xe9", "UTF-8"]),
]


@pytest.mark.parametrize(("text", "parts"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_told_in_one_line_with_file_key_value_and_remedy(written, text, parts):
    path = written(text)
    message = refusal(load, path)
    assert message.startswith(f"{path}: ")
    assert len(message) < len(str(path)) + 250
    for part in parts:
        assert part in message


def test_a_file_that_cannot_be_read_is_told_with_the_reason(tmp_path):
    absent = tmp_path / "absent.toml"
    assert refusal(load, absent).startswith(f"{absent}: there is no such file; give ")
    assert refusal(load, tmp_path).startswith(f"{tmp_path}: this is a directory; give ")
    beneath = tmp_path / "file" / "below"
    beneath.parent.write_text("")
    assert refusal(load, beneath).startswith(f"{beneath}: it can't be read (Not a directory); give ")
    assert refusal(load, "a\0b").startswith("a\\x00b: it can't be read (")
    assert refusal(load, "a\nb").startswith("a\\nb: there is no such file")
    assert refusal(load, os.fsdecode(b"\xff")).startswith("\\udcff: there is no such file")


# Whom it is for


def test_a_worker_beyond_the_run_s_workers_is_refused_where_it_is_named(written):
    path = written(EXAMPLE)
    assert refusal(load(path).checked_for, 3) == (
        f"{path}: worker table 1: index is 3; with 3 workers it must be from 0 to 2: change it, or ask for more workers"
    )
    scenario = load(
        written("[[event]]\nworker = 0\nat_step = 1\nslow = 2\n[[event]]\nworker = 1\nat_step=1\nkill=true")
    )
    assert refusal(scenario.checked_for, 1).startswith(f"{path}: event 2: worker is 1; with 1 worker it must be 0")
    assert refusal(Scenario(speeds={9: 1.0}).checked_for, 2).startswith("scenario: worker table 1: index is 9;")


def test_the_number_of_workers_asked_for_wins_over_the_file_s(written):
    scenario = load(written(EXAMPLE))
    assert scenario.checked_for(4).workers == 4
    assert scenario.checked_for(8) == scenario
    assert scenario.workers == 8


def test_the_simulator_may_ask_for_steps_shorter_than_the_measured_and_a_real_run_may_not(written):
    path = written("[[worker]]\nindex = 0\nspeed = 1\n[[worker]]\nindex = 3\nspeed = 2")
    scenario = load(path)
    assert scenario.checked_for(4).step_seconds(3, 0, 0.0, 1.0, 0) == 0.5
    assert refusal(scenario.checked_for_real_run).startswith(
        f"{path}: worker 3: speed is 2.0; a real step can't be made shorter: "
        "set cluster.compute, so that a step can be padded"
    )
    padded = Scenario(compute=0.4, jitter=0.1, speeds={3: 2.0})
    assert padded.checked_for_real_run() is padded
    assert "cluster.jitter is 0.1; a real step can't" in refusal(Scenario(jitter=0.1).checked_for_real_run)
    back = Scenario(events=(Kill(worker=1, at=1.0, rejoin_after=3.0),))
    assert "event 1: rejoin_after is 3s; in a real run a killed worker stays away" in refusal(back.checked_for_real_run)
    paced = Scenario(network=Network(mixed=1e9))
    assert "network.mixed is given; a real run's versions and averages" in refusal(paced.checked_for_real_run)


# The plan


def test_a_step_takes_compute_over_speed_whatever_was_measured():
    scenario = Scenario(compute=0.5, speeds={3: 0.25})
    assert scenario.step_seconds(3, 0, 0.0, 9.0, 0) == 2.0
    assert scenario.step_seconds(2, 0, 0.0, 9.0, 0) == 0.5


def test_without_compute_the_measured_step_is_stretched():
    scenario = Scenario(speeds={3: 0.25}, events=(Slowdown(worker=3, at=0.0, factor=3.0),))
    assert scenario.step_seconds(3, 0, 0.0, 0.5, 0) == 6.0
    assert scenario.step_seconds(2, 0, 0.0, 0.5, 0) == 0.5


@pytest.mark.parametrize("scenario", [Scenario(compute=0.5, jitter=0.3), Scenario(jitter=0.3)])
def test_jitter_applies_to_compute_and_to_the_measured_alike(scenario):
    assert scenario.step_seconds(1, 7, 0.0, 0.5, 42) == 0.5 * scenario.jitter_factor(1, 7, 42) != 0.5


def steps_slowed(slowdown: Slowdown, steps: range) -> list[int]:
    scenario = Scenario(compute=1.0, events=(slowdown,))
    return [step for step in steps if scenario.step_seconds(slowdown.worker, step, 0.0, 0.0, 0) != 1.0]


def seconds_slowed(slowdown: Slowdown, moments: list[float]) -> list[float]:
    scenario = Scenario(compute=1.0, events=(slowdown,))
    return [at for at in moments if scenario.step_seconds(slowdown.worker, 0, at, 0.0, 0) != 1.0]


def test_a_slowness_by_steps_spares_the_first_at_step_steps_and_lasts_for_steps():
    assert steps_slowed(Slowdown(worker=1, at_step=3, for_steps=2, factor=4.0), range(9)) == [3, 4]
    assert steps_slowed(Slowdown(worker=1, at_step=0, for_steps=1, factor=4.0), range(9)) == [0]


def test_a_slowness_by_time_begins_at_its_start_and_is_over_at_its_end():
    slowdown = Slowdown(worker=1, at=10.0, for_=5.0, factor=4.0)
    just_before, last = math.nextafter(10.0, 0.0), math.nextafter(15.0, 0.0)
    assert seconds_slowed(slowdown, [0.0, just_before, 10.0, last, 15.0, 50.0]) == [10.0, last]


def test_a_slowness_without_a_length_lasts_for_ever():
    assert steps_slowed(Slowdown(worker=1, at_step=3, factor=4.0), range(1, 10**9, 10**8 - 1)) == list(
        range(10**8, 10**9, 10**8 - 1)
    )
    assert seconds_slowed(Slowdown(worker=1, at=10.0, factor=4.0), [9.0, 10.0, 1e9]) == [10.0, 1e9]


def test_a_repeated_slowness_comes_back_every_so_often_and_not_before_it_began():
    slowdown = Slowdown(worker=1, at=10.0, for_=5.0, every=40.0, factor=4.0)
    moments = [0.0, 9.0, 10.0, 14.9, 15.0, 49.9, 50.0, 54.9, 55.0, 89.9, 90.0, 94.9, 95.0]
    assert seconds_slowed(slowdown, moments) == [10.0, 14.9, 50.0, 54.9, 90.0, 94.9]


def test_slownesses_that_overlap_multiply_and_touch_only_their_worker():
    scenario = Scenario(
        compute=1.0,
        events=(
            Slowdown(worker=1, at=0.0, factor=2.0),
            Slowdown(worker=1, at_step=5, factor=3.0),
            Slowdown(worker=0, at=0.0, factor=7.0),
            Kill(worker=1, at_step=5),
        ),
    )
    assert scenario.step_seconds(1, 5, 1.0, 0.0, 0) == 6.0
    assert scenario.step_seconds(1, 4, 1.0, 0.0, 0) == 2.0
    assert scenario.step_seconds(2, 5, 1.0, 0.0, 0) == 1.0


@pytest.mark.parametrize("jitter", [0.05, 0.5])
def test_jitter_has_mean_1_and_the_deviation_asked_for(jitter):
    scenario = Scenario(jitter=jitter)
    draws = [scenario.jitter_factor(worker, step, 7) for worker in range(4) for step in range(5000)]
    assert statistics.fmean(draws) == pytest.approx(1.0, rel=0.01)
    assert statistics.stdev(draws) == pytest.approx(jitter, rel=0.03)
    logs = [math.log(draw) for draw in draws]
    assert statistics.fmean(logs) == pytest.approx(statistics.median(logs), abs=0.02 * jitter)
    assert min(draws) > 0


def test_jitter_is_a_function_of_seed_worker_and_step():
    scenario = Scenario(jitter=0.3)
    triples = [(worker, step, seed) for worker in range(3) for step in range(3) for seed in range(3)]
    factors = [scenario.jitter_factor(*triple) for triple in triples]
    assert len(set(factors)) == len(triples)
    assert [scenario.jitter_factor(*triple) for triple in reversed(triples)] == factors[::-1]
    assert Scenario(jitter=0.3, compute=1.0, speeds={0: 0.5}).jitter_factor(1, 2, 0) == scenario.jitter_factor(1, 2, 0)


def test_jitter_is_the_same_in_another_process():
    code = "from paceline.core.scenario import Scenario; print(repr(Scenario(jitter=0.3).jitter_factor(1, 2, 42)))"
    environment = os.environ | {"PYTHONHASHSEED": "99", "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert float(told.stdout) == Scenario(jitter=0.3).jitter_factor(1, 2, 42)


def test_a_kill_by_step_comes_as_that_worker_starts_that_step():
    scenario = Scenario(events=(Kill(worker=1, at_step=50), Slowdown(worker=1, at_step=49, factor=2.0)))
    found = [(worker, step) for worker in range(3) for step in range(100) if scenario.kills_at_step(worker, step)]
    assert found == [(1, 50)]
    assert scenario.kills_by_time() == ()


def test_kills_by_time_come_in_the_order_of_time():
    scenario = Scenario(
        events=(Kill(worker=0, at=9.0), Kill(worker=2, at=3.0), Kill(worker=1, at_step=0), Kill(worker=1, at=3.0))
    )
    assert scenario.kills_by_time() == ((3.0, 1), (3.0, 2), (9.0, 0))


# Written out again


FULL = Scenario(
    workers=8,
    nodes=2,
    compute=1 / 3,
    jitter=0.05,
    network=Network(
        bandwidth=1e9 / 7,
        latency=5e-7,
        message=25_000_001,
        incast=0.9,
        servers=3,
        worker_bandwidth=1e9 / 3,
        commit=0.0125,
        within_nodes=1e11,
        between_nodes=1e9 / 9,
        mixed=1e8,
    ),
    speeds={3: 0.25, 0: 1e-7},
    events=(
        Slowdown(worker=2, at=0.0, for_=59.999999999999, every=12345.6, factor=4.0),
        Slowdown(worker=2, at_step=0, for_steps=3, factor=1.1),
        Slowdown(worker=2, at=1e-9, factor=1.0),
        Kill(worker=1, at_step=50),
        Kill(worker=1, at=1e15 / 3, rejoin_after=2.5),
    ),
)


@pytest.mark.parametrize("scenario", [Scenario(), Scenario(network=Network()), FULL], ids=["empty", "network", "full"])
def test_what_is_written_out_is_read_back_the_same(written, scenario):
    assert load(written(tomli_w.dumps(scenario.to_plain()))) == scenario


def test_what_is_written_out_is_settled_and_legible(written):
    assert load(written(EXAMPLE)).checked_for(9).to_plain() == {
        "cluster": {"workers": 9, "nodes": 2, "compute": "400ms", "jitter": 0.05},
        "network": {"bandwidth": "125MB/s", "latency": "50us", "message": "25MB", "incast": 0.5, "servers": 1},
        "worker": [{"index": 3, "speed": 0.25}],
        "event": [
            {"worker": 2, "at": "10s", "for": "5s", "every": "40s", "slow": 4.0},
            {"worker": 1, "at_step": 50, "kill": True},
        ],
    }
    assert Scenario().to_plain() == {"cluster": {"nodes": 1, "jitter": 0.0}}


def test_a_scenario_travels_to_another_process_and_cannot_be_changed():
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert hash(FULL) == hash(pickle.loads(pickle.dumps(FULL)))
    with pytest.raises(AttributeError):
        FULL.nodes = 3
