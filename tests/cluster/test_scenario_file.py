"""Scenario files: what they and their quantities may say, what is told of a mistake, and what is written out again."""

from __future__ import annotations

import os

import pytest
import tomli_w

from paceline.scenario.quantities import as_count, count, duration, rate, size
from paceline.scenario.scenario import HostTable, Kill, Network, Scenario, Slowdown
from paceline.scenario.scenario_file import load, to_plain
from support.scenarios import EXAMPLE, FULL, HOSTS, refusal

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


def test_workers_are_dealt_to_hosts_in_the_order_of_their_tables(written):
    text = '[[host]]\nworkers = 1\nbandwidth = "1GB/s"\n[[host]]\nname = "big"\nworkers = 3\nspeed = 2\nlatency = "1ms"'
    scenario = load(written(text))
    assert scenario.host_tables == (
        HostTable(name="node-0", workers=range(1), bandwidth=1e9),
        HostTable(name="big", workers=range(1, 4), speed=2.0, latency=1e-3),
    )
    assert (scenario.workers, scenario.nodes) == (4, 2)
    assert scenario.hosts(4) == ["node-0", "big", "big", "big"]


def test_a_host_besides_the_head_may_have_no_workers(written):
    scenario = load(written(hosts("workers = 0", "[[host]]", 'name = "last"', "workers = 1")))
    assert scenario.placed(3) == {"node-0": range(2), "node-1": range(2, 2), "last": range(2, 3)}
    assert scenario.hosts(3) == ["node-0", "node-0", "last"]
    assert [scenario.speed(worker) for worker in range(3)] == [1.0, 1.0, 1.0]
    assert load(written(tomli_w.dumps(to_plain(scenario)))) == scenario


def test_other_tables_may_say_the_same_as_those_of_hosts(written):
    text = "[cluster]\nworkers = 4\nnodes = 2\n[network]\nservers = 1\n[[host]]\nworkers = 1\n[[host]]\nworkers = 3"
    assert load(written(text)).hosts(4) == ["node-0", "node-1", "node-1", "node-1"]


# Mistakes


def hosts(*lines: str) -> str:
    """A file whose second host is the one of interest."""
    return "\n".join(["[[host]]", "workers = 2", "[[host]]", *lines])


def event(*lines: str) -> str:
    """A file whose second event is the one of interest."""
    return "\n".join(["[[event]]", "worker = 0", "at_step = 1", "slow = 2.0", "[[event]]", *lines])


def slow(*lines: str) -> str:
    return event("worker = 1", "slow = 4.0", *lines)


MISTAKES = [
    # what is wrong, the file, what the message must hold
    ("unknown table", "[netwrok]", ["unknown table", '"netwrok"', 'did you mean "network"', "[[event]]"]),
    ("unknown key", "[cluster]\ncomptue = 1", ["cluster", '"comptue"', 'did you mean "compute"', "known: workers"]),
    ("key outside its table", "workers = 8", ['unknown key "workers"', "it belongs in [cluster]"]),
    ("key that holds a line break", '[cluster]\n"a\\nb" = 1', [r'"a\nb"']),
    ("workers below 1", "[cluster]\nworkers = 0", ["cluster.workers is 0", "at least 1"]),
    ("workers as a truth", "[cluster]\nworkers = true", ["cluster.workers is true", "whole number"]),
    ("a bare number for a duration", "[cluster]\ncompute = 0.4", ["cluster.compute is 0.4", "in quotes", '"400ms"']),
    ("a step of no length", '[cluster]\ncompute = "0s"', ['cluster.compute is "0s"', "longer than nothing"]),
    ("jitter as percent", "[cluster]\njitter = 15", ["cluster.jitter is 15", "to 10", "0.05 is 5 %"]),
    ("cluster twice over", "[[cluster]]\nworkers = 1", ["cluster is an array", "[cluster]"]),
    ("network as a number", "network = 3", ["network is 3", "[network]"]),
    ("bandwidth in no unit", '[network]\nbandwidth = "1Gbps"', ['network.bandwidth is "1Gbps"', "Gbit/s"]),
    ("no bandwidth", '[network]\nbandwidth = "0MB/s"', ['network.bandwidth is "0MB/s"', "more than 0"]),
    ("incast of 0", "[network]\nincast = 0", ["network.incast is 0", "above 0"]),
    ("events that are no tables", "event = [1]", ["event 1: it is 1", "[[event]]"]),
    ("one host in single brackets", "[host]\nworkers = 2", ["host is a table", "[[host]]"]),
    ("a host's key elsewhere", "name = 'a'", ['unknown key "name"', "it belongs in [[host]]"]),
    ("a host without workers", hosts("speed = 1.0"), ["host table 2: workers is missing", "workers = 2"]),
    ("fewer than no workers", hosts("workers = -1"), ["host table 2: workers is -1", "at least 0"]),
    ("a head without workers", "[[host]]\nworkers = 0", ["host table 1: workers is 0", "at least 1"]),
    ("a name too long", hosts("workers = 1", f'name = "{"x" * 65}"'), ["host table 2: name is", "1 to 64"]),
    (
        "one name, two hosts",
        hosts("workers = 1", 'name = "node-0"'),
        ['host table 2: name is "node-0"', "host table 1 has already"],
    ),
    ("other workers than hosts have", "[cluster]\nworkers = 4\n" + hosts("workers = 1"), ["workers is 4", "make it 3"]),
    ("other nodes than hosts", "[cluster]\nnodes = 3\n" + hosts("workers = 1"), ["cluster.nodes is 3", "make it 2"]),
    (
        "a link beside hosts",
        '[network]\nworker_bandwidth = "1GB/s"\n' + hosts("workers = 1"),
        ['network.worker_bandwidth is "1GB/s"', "links belong to hosts"],
    ),
    (
        "servers beside hosts",
        "[network]\nservers = 2\n" + hosts("workers = 1"),
        ["network.servers is 2", "links"],
    ),
    ("no speed", "[[worker]]\nindex = 3", ["worker table 1: speed is missing", "speed = 0.25"]),
    ("no index", "[[worker]]\nspeed = 1", ["worker table 1: index is missing", "index = 3"]),
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
    (
        "kill for a while",
        event("worker = 1", 'at = "1s"', "kill = true", 'for = "5s"'),
        ['event 2: for is "5s"', "stays away"],
    ),
    (
        "rejoining of the slow",
        slow('at = "1s"', 'rejoin_after = "3s"'),
        ['event 2: rejoin_after is "3s"', "leave it out"],
    ),
    ("slow below 1", event("worker = 1", "at_step = 1", "slow = 0.5"), ["event 2: slow is 0.5", "at least 1"]),
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


# Written out again


@pytest.mark.parametrize(
    "scenario",
    [Scenario(), Scenario(network=Network()), FULL, HOSTS],
    ids=["empty", "network", "full", "hosts"],
)
def test_what_is_written_out_is_read_back_the_same(written, scenario):
    assert load(written(tomli_w.dumps(to_plain(scenario)))) == scenario


def test_what_is_written_out_is_settled_and_legible(written):
    assert to_plain(load(written(EXAMPLE)).checked_for(9)) == {
        "cluster": {"workers": 9, "nodes": 2, "compute": "400ms", "jitter": 0.05},
        "network": {"bandwidth": "125MB/s", "latency": "50us", "message": "25MB", "incast": 0.5, "servers": 1},
        "worker": [{"index": 3, "speed": 0.25}],
        "event": [
            {"worker": 2, "at": "10s", "for": "5s", "every": "40s", "slow": 4.0},
            {"worker": 1, "at_step": 50, "kill": True},
        ],
    }
    assert to_plain(Scenario()) == {"cluster": {"nodes": 1, "jitter": 0.0}}


# Durations, rates and sizes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("400ms", 0.4),
        ("10s", 10.0),
        ("50us", 50e-6),
        ("1h", 3600.0),
        ("1.5s", 1.5),
    ],
)
def test_a_duration_is_in_seconds_to_the_last_bit(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [
        ("1Gbit/s", 125e6),
        ("8kbit/s", 1000.0),
        ("10MB/s", 10e6),
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


@pytest.mark.parametrize(
    ("text", "number"), [("25M", 25_000_000), ("1.5B", 1_500_000_000), ("0.5K", 500), ("1200", 1200)]
)
def test_a_number_of_things_may_be_in_thousands_and_is_written_as_it_is_read(text, number):
    assert count(text) == number
    assert count(as_count(number)) == number


@pytest.mark.parametrize("text", ["25X", "0", "1.5", "-1", "1e6", "", "25 M", "25m", "9" * 30])
def test_what_is_no_number_of_things_is_refused(text):
    assert "write a whole number, or one with K, M or B, such as 25M" in refusal(lambda: count(text, "--parameters"))
