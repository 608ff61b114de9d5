"""What the machines of hosts have is recorded, and compared: between hosts, and with a machine that replays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.runtime.machine import Machine, difference, environment, machine, processor, read_cpuinfo, unlike

HEAD = Machine(
    paceline="0.3.0",
    python="3.11.7",
    torch="2.13.0+cpu",
    numpy="2.4.6",
    cpu_capability="AVX2",
    vendor="AuthenticAMD",
    model="AMD EPYC",
    platform="Linux",
    cores=8,
    threads=2,
)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"torch": "2.12.0+cpu"}, "host b has torch 2.12.0, and the head 2.13.0; install the same on all hosts"),
        ({"numpy": "2.4.5"}, "host b has numpy 2.4.5, and the head 2.4.6; install the same on all hosts"),
        ({"python": "3.12.7"}, "host b has Python 3.12, and the head 3.11; install the same on all hosts"),
        ({"paceline": "0.2.0"}, "host b has Paceline 0.2.0, and the head 0.3.0; install the same on all hosts"),
        ({}, ""),
        ({"python": "3.11.9", "torch": "2.13.0+cu126"}, ""),
        ({"cpu_capability": "AVX512", "vendor": "GenuineIntel", "cores": 4, "threads": 4, "platform": "other"}, ""),
    ],
)
def test_hosts_with_other_versions_do_not_train_together_and_unequal_processors_do(
    other: dict[str, Any], line: str
) -> None:
    assert difference(HEAD, msgspec.structs.replace(HEAD, **other), "b") == line


def test_a_replay_names_the_workers_of_hosts_that_were_unlike_its_machine() -> None:
    hosts = {"a": HEAD, "b": msgspec.structs.replace(HEAD, cpu_capability="AVX512", vendor="GenuineIntel")}
    hosts["c"] = msgspec.structs.replace(hosts["b"], model="another")
    hosts["d"] = msgspec.structs.replace(HEAD, threads=1, cores=1)
    noted = environment(HEAD, hosts)["hosts"]
    workers = {"a": [0, 1], "b": [2], "c": [3, 4], "d": [5]}
    assert list(unlike(noted, workers, HEAD)) == [
        "workers 2, 3, 4 ran with cpu_capability AVX512 (here AVX2), vendor GenuineIntel (here AuthenticAMD): "
        "the replay can't promise their bits",
        "worker 5 ran with threads 1 (here 2): the replay can't promise their bits",
    ]
    assert not list(unlike(noted, {"a": [0, 1]}, HEAD))


def test_a_run_of_one_host_notes_no_hosts() -> None:
    assert environment(HEAD, {}) == {
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "numpy": "2.4.6",
        "cpu_capability": "AVX2",
        "platform": "Linux",
        "cores": 8,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n\nprocessor\t: 1\n", "GenuineIntel"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "0x41"),
    ],
)
def test_the_processor_says_who_made_it(text: str, found: str) -> None:
    vendor, model = processor(read_cpuinfo(text))
    assert vendor == found
    assert model in ("Xeon", "0xd40")


def test_a_processor_that_says_nothing_is_known_by_its_kind() -> None:
    assert all(processor({}))


def test_this_machine_is_like_itself() -> None:
    here = machine(threads=3)
    assert difference(here, here, "b") == ""
    assert here.threads == 3
    assert not list(unlike(environment(here, {"a": here})["hosts"], {"a": [0]}, here))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(here), type=Machine) == here
