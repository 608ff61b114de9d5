"""What was measured of a link: how fast bytes came, what the clocks say, and what that means for a model."""

from __future__ import annotations

import msgspec
import pytest

from paceline.host.machine import Machine
from paceline.runs.link import (
    PARAMETERS,
    Arrivals,
    Clock,
    Link,
    RoundTrip,
    Side,
    Way,
    clock,
    findings,
    meaning,
    models,
    one_store,
    plain,
    round_trip,
    sharded,
)

MACHINE = Machine(
    paceline="0.1.0",
    python="3.13.1",
    torch="2.13.0+cpu",
    numpy="2.3.5",
    isa="native",
    cpu_capability="AVX512",
    vendor="GenuineIntel",
    model="Xeon",
    platform="Linux",
    cores=2,
    boot="86baf8e6",
)
LINK = Link(
    head=Side("alpha", MACHINE, cipher=1.6e9),
    joiner=Side("beta", MACHINE, cipher=2e9),
    encrypted=True,
    round_trip=RoundTrip(0.00021, 0.00065, 300),
    clock=Clock(0.0032, 0.0001),
    to_head=Way(100e6, sending=0.65, receiving=1.1),
    to_joiner=Way(50e6, sending=0.7, receiving=1.2),
    back="10.0.0.2:4242",
    undialled="",
)


def test_bytes_of_the_first_half_do_not_count_as_a_connection_is_slow_at_first() -> None:
    arrivals = Arrivals(began=10.0)
    for tick in range(1, 101):
        arrivals.came(10 if tick <= 50 else 1000, now=10.0 + tick / 100)
    assert arrivals.rate(11.0) == pytest.approx(100_000)
    assert arrivals.bytes == 50 * 1010


def test_where_nothing_came_in_the_second_half_there_is_no_rate_yet() -> None:
    arrivals = Arrivals(began=0.0)
    assert arrivals.rate(1.0) == 0
    arrivals.came(1000, now=0.1)
    assert arrivals.rate(1.0) == 0
    arrivals.came(1000, now=1.0)
    assert arrivals.rate(1.0) > 0


def test_what_comes_in_a_burst_counts_from_the_mark_before_it() -> None:
    """A reader that was asleep finds much at once. That did not come in no time."""
    arrivals = Arrivals(began=0.0)
    arrivals.came(100, now=0.2)
    arrivals.came(800, now=1.0)
    assert arrivals.rate(1.0) == pytest.approx(1000)


def test_a_round_trip_is_told_by_its_median_and_its_99th_percentile() -> None:
    assert round_trip([0.005, 0.001, 0.003]) == RoundTrip(0.003, 0.005, 3)
    assert round_trip([number / 1000 for number in range(1, 202)]) == RoundTrip(0.101, 0.199, 201)
    assert round_trip([0.2]) == RoundTrip(0.2, 0.2, 1)


def test_the_clocks_are_compared_by_the_fastest_echo_and_wrong_by_half_of_it_at_most() -> None:
    found = clock([(100.0, 90.0, 101.0), (200.0, 195.01, 200.1), (300.0, 200.0, 309.0)])
    assert (found.ahead, found.error) == pytest.approx((5.04, 0.05))


@pytest.mark.parametrize(("hosts", "bound"), [(2, 2.0), (4, 3.0), (100, 3.96)])
def test_with_a_share_of_the_store_on_each_host_a_step_is_bound_by_the_slower_way(hosts: int, bound: float) -> None:
    assert sharded(LINK, 100_000_000, hosts) == pytest.approx(bound)


@pytest.mark.parametrize(("hosts", "bound"), [(2, 3.0), (4, 9.0)])
def test_with_the_store_at_the_head_all_updates_and_then_all_versions_go_over_the_heads_link(
    hosts: int, bound: float
) -> None:
    assert one_store(LINK, 100_000_000, hosts) == pytest.approx(bound)


def test_all_is_well_where_the_versions_are_the_same() -> None:
    found = findings(LINK)
    assert all(finding.ok for finding in found.values())
    assert {name: finding.found for name, finding in found.items()} == {
        "versions": "Paceline 0.1.0, Python 3.13.1, torch 2.13.0+cpu, numpy 2.3.5 on both",
        "processors": "Xeon with AVX512 on both",
        "round trip": "210 µs at the median, 650 µs at the 99th percentile, of 300 messages",
        "bandwidth": "100 MB/s (800 Mbit/s) from beta to alpha, 50 MB/s (400 Mbit/s) from alpha to beta",
        "work": "encrypted, a GB takes alpha 0.70 s to send and 1.10 s to receive, beta 0.65 s and 1.20 s",
        "cipher": "a core of alpha encrypts 1.6 GB/s, one of beta 2 GB/s",
        "clocks": "beta's is 3.2 ms ahead of alpha's, to within 100 µs",
        "dialling": "beta reaches alpha, and alpha reaches beta at 10.0.0.2:4242",
    }


def with_joiner(**has: str) -> Link:
    """The link with a joiner whose machine has that."""
    other = msgspec.structs.replace(LINK.joiner, machine=msgspec.structs.replace(MACHINE, **has))
    return msgspec.structs.replace(LINK, joiner=other)


def test_versions_that_keep_hosts_from_training_together_are_named_with_what_to_do() -> None:
    found = findings(with_joiner(torch="2.12.0"))["versions"]
    assert found.found == "on beta torch is 2.12.0, and the head's is 2.13.0"
    assert found.advice == "install the same on all hosts"


def test_versions_that_differ_and_may_are_said() -> None:
    found = findings(with_joiner(python="3.13.2"))["versions"]
    assert found.ok
    assert found.found == (
        "Paceline 0.1.0, Python 3.13.1, torch 2.13.0+cpu, numpy 2.3.5 on alpha, and "
        "Paceline 0.1.0, Python 3.13.2, torch 2.13.0+cpu, numpy 2.3.5 on beta"
    )


@pytest.mark.parametrize(
    ("has", "said"),
    [
        ({"model": "Xeon 2"}, "Xeon with AVX512 on alpha, and Xeon 2 with AVX512 on beta"),
        (
            {"model": "Ryzen", "vendor": "AMD"},
            "Xeon with AVX512 on alpha, and Ryzen with AVX512 on beta; they may round differently, which --isa common "
            "is for",
        ),
        (
            {"cpu_capability": "AVX2"},
            "Xeon with AVX512 on alpha, and Xeon with AVX2 on beta; they may round differently, which --isa common "
            "is for",
        ),
    ],
)
def test_processors_that_may_round_differently_are_said(has: dict[str, str], said: str) -> None:
    found = findings(with_joiner(**has))["processors"]
    assert found.ok
    assert found.found == said


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (-61.5, "alpha's is 61.5 s ahead of beta's, to within 2 ms"),
        (0.0019, "they agree, to within 2 ms"),
        (-0.0019, "they agree, to within 2 ms"),
    ],
)
def test_which_clock_is_ahead_is_said_unless_they_agree_as_far_as_can_be_told(ahead: float, said: str) -> None:
    assert findings(msgspec.structs.replace(LINK, clock=Clock(ahead, 0.002)))["clocks"].found == said


def test_a_joiner_that_cannot_be_dialled_is_said_and_is_well_as_runs_do_without() -> None:
    found = findings(msgspec.structs.replace(LINK, undialled="Connection refused"))["dialling"]
    assert found.ok
    assert found.found == (
        "beta reaches alpha; alpha does not reach beta at 10.0.0.2:4242 (Connection refused), which runs do without"
    )


def test_a_link_without_encryption_is_said_to_be_one() -> None:
    found = findings(msgspec.structs.replace(LINK, encrypted=False))["work"].found
    assert found.startswith("not encrypted, a GB takes alpha 0.70 s to send")


def test_what_the_link_means_is_said_in_sentences() -> None:
    assert meaning(LINK, [25_000_000], [2, 4]) == [
        "What that means for models in float32, with one worker on each host and such links between hosts:",
        "25M parameters (100 MB) take at least 1 s from beta to alpha, and 2 s from alpha to beta.",
        "A BSP step takes at least 3 s on 2 hosts and 9 s on 4 hosts, as the head has the store. With shares of the "
        "store on all hosts it would be 2 s and 3 s.",
    ]
    assert len(meaning(LINK, PARAMETERS, [2, 4])) == 7


def test_the_same_is_there_as_plain_data() -> None:
    assert models(LINK, [25_000_000], [2, 4]) == [
        {
            "parameters": 25_000_000,
            "bytes": 100_000_000,
            "to_head_seconds": 1.0,
            "to_joiner_seconds": 2.0,
            "bsp_step_seconds": [
                {"hosts": 2, "store_at_the_head": 3.0, "store_on_all_hosts": 2.0},
                {"hosts": 4, "store_at_the_head": 9.0, "store_on_all_hosts": 3.0},
            ],
        }
    ]


def test_the_link_is_plain_data_with_names() -> None:
    told = plain(LINK)
    assert told["head"]["machine"]["torch"] == "2.13.0+cpu"
    assert told["to_joiner"] == {"rate": 50e6, "sending": 0.7, "receiving": 1.2}
    assert list(told) == [
        *("head", "joiner", "encrypted", "round_trip", "clock", "to_head", "to_joiner", "back", "undialled")
    ]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_nothing_can_be_divided_by_is_no_message(rate: float) -> None:
    told = msgspec.msgpack.encode(Way(rate, 0.0, 0.0))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(told, type=Way)
