"""What the machines of hosts have: recorded, compared between hosts and with a replay, and dealt out to workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.host import processor
from paceline.host.devices import ON_CPU, device_of, devices, give, listed, there, visible
from paceline.host.devices import VARIABLE as NAME
from paceline.host.machine import Machine, difference, environment, unlike
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


# --- which accelerator each worker has


@pytest.mark.parametrize(
    ("variable", "there", "asked", "expected"),
    [
        # nothing is asked for: devices are dealt out where there are several
        (None, 0, None, []),
        (None, 1, None, []),
        (None, 2, None, ["0", "1"]),
        ("7,8", 0, None, ["7", "8"]),
        ("3", 4, None, []),
        ("", 4, None, []),
        ("2,-1,3", 4, None, []),  # CUDA reads the variable up to its first entry that is no device
        ("2,3,-1,0", 4, None, ["2", "3"]),
        (" GPU-8f1c , MIG-22aa ", 1, None, ["GPU-8f1c", "MIG-22aa"]),
        # what is asked for
        (None, 2, "0,0,1", ["0", "0", "1"]),
        (None, 2, "0,cpu", ["0", ""]),
        ("7,8", 0, "1,cpu", ["8", ""]),
    ],
)
def test_devices_are_those_that_are_asked_for_of_what_is_visible_or_all_where_there_are_several(
    variable: str | None, there: int, asked: str | None, expected: list[str]
) -> None:
    environ = {} if variable is None else {NAME: variable}
    assert devices(environ, there, asked) == expected


@pytest.mark.parametrize(
    ("variable", "there", "asked", "line"),
    [
        (None, 0, "0", "--devices names device 0, and this machine has no GPU visible; write cpu, or leave --"),
        (None, 1, "0,1", "--devices names device 1, and this machine has 1 device, number 0; name that, or cpu"),
        (None, 4, "cpu,9", "--devices names device 9, and this machine has 4 devices, numbers 0 to 3; name those, or"),
        ("7,8", 9, "2", "--devices names device 2, and CUDA_VISIBLE_DEVICES has 2 devices, numbers 0 to 1; name"),
        ("", 9, "0", "--devices names device 0, and CUDA_VISIBLE_DEVICES leaves none visible; write cpu, or leave"),
    ],
)
def test_a_number_beyond_what_is_visible_is_refused_in_one_line_that_says_what_there_is(
    variable: str | None, there: int, asked: str, line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        devices({} if variable is None else {NAME: variable}, there, asked)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_worker_takes_the_entry_of_its_number_and_begins_again_where_the_list_ends() -> None:
    assert [device_of(worker, ["0", "", "1"]) for worker in range(5)] == ["0", "", "1", "0", ""]
    assert device_of(3, []) is None


def test_a_list_is_read_as_numbers_and_cpu_and_nothing_else() -> None:
    assert listed("0,1") == "0,1"
    assert listed(" 00, cpu ,12 ") == "0,cpu,12"
    for text in ("", ",", "0,", "cuda:0", "gpu", "-1", "0 1", "1.5", "٣", "CPU", "9" * 20):
        with pytest.raises(ConfigError, match=r"^--devices is .*; write device numbers or cpu, such as 0,1 or 0,cpu$"):
            listed(text)


def test_each_device_file_with_a_number_is_one_device(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia1x", "tty0"):
        (tmp_path / name).touch()
    assert there(tmp_path) == 3
    assert there(tmp_path / "none") == 0
    assert visible({}, 3) == ["0", "1", "2"], "CUDA numbers what it finds, and not the files"


def test_a_worker_s_own_environment_has_its_device_and_is_left_alone_where_none_is_dealt_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {NAME: "7,8"}
    give(3, None, environ)
    assert environ == {NAME: "8"}
    environ = {NAME: "7"}
    give(3, None, environ)
    assert environ == {NAME: "7"}
    give(3, ON_CPU, environ)
    assert environ == {NAME: ""}
