"""Scenarios that several tests take, and what is told of mistakes in them."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.scenario.scenario import HostTable, Kill, Network, Scenario, Slowdown

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

HOSTS = Scenario(
    workers=7,
    nodes=3,
    network=Network(message=25_000_001, commit=0.0125),
    host_tables=(
        HostTable(name="node-0", workers=range(4), speed=1e-7, bandwidth=1e9 / 7, latency=5e-7),
        HostTable(name="node-1", workers=range(4, 5)),
        HostTable(name="ümlaut und mehr", workers=range(5, 7), speed=2.0),
    ),
)


def refusal(call, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message.isprintable(), "the message is one line"
    return message
