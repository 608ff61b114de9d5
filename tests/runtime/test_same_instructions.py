"""`--isa common`: all that computes, on all hosts, uses the same instructions, and so does a replay."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.errors import ConfigError
from paceline.host import processor
from paceline.host.processor import CAPS, can_cap, cap, isa
from support.launch import Launch
from support.runs import replayed
from support.scripts import training

NOTES = """
import json
from pathlib import Path
from numpy._core._multiarray_umath import __cpu_features__
found = {
    "torch": torch.backends.cpu.get_cpu_capability(),
    "numpy": [name for name in ("X86_V4", "AVX512_SKX", "AVX512_ICL", "AVX512_SPR") if __cpu_features__.get(name)],
    "MKL_CBWR": os.environ["MKL_CBWR"],
}
(Path(__file__).parent / f"found-{me}").write_text(json.dumps(found))
"""


@pytest.mark.skipif(not can_cap(), reason="this processor has no AVX2")
def test_workers_of_all_hosts_and_of_a_replay_compute_with_the_same_instructions(launch: Launch) -> None:
    flags = ("--emulate-hosts", "2", "-n", "1", "--isa", "common", "--threads", "1")
    run = launch.run(training(before=NOTES), *flags, fresh=True).completed()
    capped = '{"torch": "AVX2", "numpy": [], "MKL_CBWR": "COMPATIBLE"}'
    assert [(launch.tmp_path / f"found-{worker}").read_text() for worker in range(2)] == [capped] * 2
    config = (run.folder / "config.toml").read_text()
    assert 'isa = "common"' in config
    assert config.count('cpu_capability = "AVX2"') == 3, "the head's, and that of each host"
    again = replayed(run.folder, fresh=True)
    assert again.code == 0, again.out + again.err
    assert again.out.startswith("the same bits"), "it is said of no worker that its bits can't be promised"


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has loaded no library, and whose environment is as it was when the test is over."""
    for name in CAPS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(processor, "sys", SimpleNamespace(modules={}))


def test_a_processor_that_lacks_them_is_refused_in_one_line(
    untouched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "cpuinfo"
    there.write_text("CPU implementer\t: 0x41\nFeatures\t: fp asimd\nCPU part\t: 0xd40\n")
    monkeypatch.setattr(processor, "CPUINFO", there)
    line = r"^--isa common means AVX2, which this processor \(0x41 0xd40\) lacks; leave it out$"
    with pytest.raises(ConfigError, match=line):
        cap("common")
    cap("native")
    assert isa() == "native"
    assert not set(CAPS) & set(os.environ)


def test_libraries_that_are_loaded_already_can_not_be_capped(
    untouched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "cpuinfo"
    there.write_text("vendor_id\t: GenuineIntel\nflags\t: fma avx2\n")
    monkeypatch.setattr(processor, "CPUINFO", there)
    cap("common")
    assert {name: os.environ[name] for name in CAPS} == CAPS
    assert isa() == "common"
    monkeypatch.setattr(processor, "sys", SimpleNamespace(modules={"numpy": None}))
    with pytest.raises(AssertionError):
        cap("common")
