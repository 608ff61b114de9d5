"""What the machines of hosts have is recorded, and compared: between hosts, and with a machine that replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.host import processor
from paceline.host.machine import Machine, difference, environment, machine, unlike
from paceline.host.processor import cpuinfo, vendor_and_model

HEAD = Machine(
    paceline="0.3.0",
    python="3.11.7",
    torch="2.13.0+cpu",
    numpy="2.4.6",
    isa="native",
    cpu_capability="AVX2",
    vendor="AuthenticAMD",
    model="AMD EPYC",
    platform="Linux",
    cores=8,
    boot="86baf8e6",
    devices=2,
)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"torch": "2.12.0+cpu"}, "torch is 2.12.0, and the head's is 2.13.0; install the same on all hosts"),
        ({"numpy": "2.4.5"}, "numpy is 2.4.5, and the head's is 2.4.6; install the same on all hosts"),
        ({"python": "3.12.7"}, "Python is 3.12, and the head's is 3.11; install the same on all hosts"),
        ({"paceline": "0.2.0"}, "Paceline is 0.2.0, and the head's is 0.3.0; install the same on all hosts"),
        ({}, ""),
        ({"python": "3.11.9", "torch": "2.13.0+cu126"}, ""),
        ({"cpu_capability": "AVX512", "vendor": "GenuineIntel", "cores": 4, "platform": "other"}, ""),
        ({"isa": "common"}, "--isa is common, and the head's is native; give the same on all hosts"),
    ],
)
def test_hosts_with_other_versions_do_not_train_together_and_unequal_processors_do(
    other: dict[str, Any], line: str
) -> None:
    assert difference(HEAD, msgspec.structs.replace(HEAD, **other)) == line


def test_a_replay_names_the_workers_of_hosts_that_were_unlike_its_machine() -> None:
    other = msgspec.structs.replace(HEAD, cpu_capability="AVX512", vendor="GenuineIntel")
    alike = msgspec.structs.replace(HEAD, cores=1, model="another")
    noted = environment(HEAD, {"a": (HEAD, 2), "b": (other, 2), "c": (other, 2), "d": (alike, 1)})["hosts"]
    workers = {"a": [0, 1], "b": [2], "c": [3, 4], "d": [5]}
    assert list(unlike(noted, workers, HEAD, 2)) == [
        "workers 2, 3, 4 ran with cpu_capability AVX512 (here AVX2), vendor GenuineIntel (here AuthenticAMD): "
        "the replay can't promise their bits",
        "worker 5 ran with threads 1 (here 2): the replay can't promise their bits",
    ]
    assert not list(unlike(noted, {"a": [0, 1]}, HEAD, 2))


def test_a_run_of_one_host_notes_no_hosts() -> None:
    assert environment(HEAD, {}) == {
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "numpy": "2.4.6",
        "cpu_capability": "AVX2",
        "platform": "Linux",
        "cores": 8,
        "devices": 2,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vendor_id\t: GenuineIntel\nmodel name\t: Xeon\n\nvendor_id\t: other\n", ("GenuineIntel", "Xeon")),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", ("0x41", "0xd40")),
    ],
)
def test_the_processor_says_who_made_it(
    text: str, found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert all(vendor_and_model(cpuinfo())), "a processor that says nothing is known by its kind"
    (tmp_path / "cpuinfo").write_text(text)
    assert vendor_and_model(cpuinfo()) == found


def test_this_machine_is_like_itself() -> None:
    here = machine()
    assert difference(here, here) == ""
    assert not list(unlike(environment(here, {"a": (here, 3)})["hosts"], {"a": [0]}, here, 3))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(here), type=Machine) == here
