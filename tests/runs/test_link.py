"""What was measured of a link: how fast bytes came, what the clocks say, and what that means for a model."""

from __future__ import annotations

import msgspec
import pytest

from paceline.host.machine import Machine
from paceline.runs.link import PARAMETERS, MeasuredLink, Side, findings, models

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
LINK = MeasuredLink(
    head=Side("alpha", MACHINE),
    joiner=Side("beta", MACHINE),
    encrypted=True,
    clock_ahead=0.0032,
    clock_error=0.0001,
    bandwidth=50e6,
)


def found_of(link: MeasuredLink) -> dict[str, str]:
    return {name: finding.found for name, finding in findings(link, [25_000_000]).items()}


def test_all_is_well_where_the_versions_are_the_same() -> None:
    assert all(finding.ok for finding in findings(LINK, PARAMETERS).values())
    assert found_of(LINK) == {
        "connection": "TLS, and both have the same token",
        "versions": "Paceline 0.1.0, Python 3.13.1, torch 2.13.0+cpu, numpy 2.3.5 on both",
        "clocks": "beta's is 3.2 ms ahead of alpha's, to within 100 µs",
        "bandwidth": "50 MB/s (400 Mbit/s) from beta to alpha",
        "update": "from beta to alpha, by the model's parameters in float32: 25M (100 MB) 2 s",
    }


def test_a_link_without_encryption_is_said_to_be_one() -> None:
    plainly = msgspec.structs.replace(LINK, encrypted=False)
    assert found_of(plainly)["connection"] == "not encrypted, and both have the same token"


def with_joiner(**has: str) -> MeasuredLink:
    """The link with a joiner whose machine has that."""
    other = msgspec.structs.replace(LINK.joiner, machine=msgspec.structs.replace(MACHINE, **has))
    return msgspec.structs.replace(LINK, joiner=other)


def test_versions_that_keep_hosts_from_training_together_are_named_with_what_to_do() -> None:
    found = findings(with_joiner(torch="2.12.0"), PARAMETERS)["versions"]
    assert found.found == "on beta torch is 2.12.0, and the head's is 2.13.0"
    assert found.advice == "install the same on all hosts"


def test_versions_that_differ_and_may_are_said() -> None:
    found = findings(with_joiner(python="3.13.2"), PARAMETERS)["versions"]
    assert found.ok
    assert found.found == (
        "Paceline 0.1.0, Python 3.13.1, torch 2.13.0+cpu, numpy 2.3.5 on alpha, and "
        "Paceline 0.1.0, Python 3.13.2, torch 2.13.0+cpu, numpy 2.3.5 on beta"
    )


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (-61.5, "alpha's is 61.5 s ahead of beta's, to within 2 ms"),
        (0.0019, "they agree, to within 2 ms"),
        (-0.0019, "they agree, to within 2 ms"),
    ],
)
def test_which_clock_is_ahead_is_said_unless_they_agree_as_far_as_can_be_told(ahead: float, said: str) -> None:
    assert found_of(msgspec.structs.replace(LINK, clock_ahead=ahead, clock_error=0.002))["clocks"] == said


def test_an_update_of_each_model_is_as_large_as_the_model() -> None:
    assert findings(LINK, PARAMETERS)["update"].found.endswith(": 1M (4 MB) 80 ms, 25M (100 MB) 2 s, 100M (400 MB) 8 s")
    assert models(LINK, [25_000_000]) == [{"parameters": 25_000_000, "bytes": 100_000_000, "update_seconds": 2.0}]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_bandwidth_that_nothing_can_be_divided_by_is_no_message(rate: float) -> None:
    told = msgspec.json.encode(msgspec.structs.replace(LINK, bandwidth=rate))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(told, type=MeasuredLink)
