"""Real runs between machines: what the scripts of `benchmarks/claims` and the map make of what a run came to."""

from __future__ import annotations

import importlib.util
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from paceline.scenario.scenario_file import from_plain

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SYSTEMS = ("dssp", "hsp", "ps_plus", "sync_switch", "ripples")


def loaded(name: str, path: Path) -> ModuleType:
    """Import a script by its file: another folder has scripts of the same names."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bed = loaded("bed", BENCHMARKS / "claims" / "bed.py")
atlas = loaded("map_of_protocols", BENCHMARKS / "map.py")


def a_run(case: str, protocol: str, seed: int, period: float = 1.0) -> bed.Run:
    """One that learns: an accuracy of .9 after five iterations."""
    curve = [(float(at), at * period, 0.18 * min(at, 5)) for at in range(1, 9)]
    return bed.Run(case, protocol, 0.1, seed, period, 8 * period, 0.0, [8], curve)


def test_a_target_is_met_where_three_versions_have_it_on_average() -> None:
    run = a_run("case", "bsp", 0)
    assert run.met(0.7) == (5.0, 5.0)
    assert run.met(0.85) == (7.0, 7.0)
    assert run.met(0.95) is None


def test_the_simulator_is_told_of_the_same_cluster_as_the_script() -> None:
    cluster = bed.Cluster(4, rate="200mbit", slow={3: 5}, bursts=(3.0, 1.0, 4.0))
    there = from_plain(tomllib.loads(cluster.scenario(1000)))
    assert [there.workers, there.host_tables[0].bandwidth] == [4, 200e6 / 8]
    train = loaded("train_of_claims", BENCHMARKS / "claims" / "train.py")
    for worker in range(4):
        bursts = train.Bursts(worker, 4, 3.0, 1.0, 4.0)
        began, still = time.monotonic(), 5 if worker == 3 else 1
        bursts._began = began
        for at in (0.5, 1.5, 3.5, 6.2, 9.9, 12.1, 13.5, 15.5):
            assert still * bursts.factor(began + at) == pytest.approx(there.slowed(worker, 1, at) / there.speed(worker))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_case_comes_to_claims_that_may_stand_in_a_table(system: str) -> None:
    script = loaded(f"claims_{system}", BENCHMARKS / "claims" / f"{system}.py")
    assert script.claims({}) == []
    rows = {}
    for case in script.CASES:
        for number, protocol in enumerate(case.protocols):
            runs = [a_run(case.name, protocol, seed, 1 + number + 0.1 * seed) for seed in range(3)]
            rows[case.name, protocol] = bed.Row(0.1, runs, case.target)
    claims = script.claims(rows)
    assert {claim.by for claim in claims} == {"real runs"}
    assert all(len(bed.table(case, rows)) == 1 + len(case.protocols) for case in script.CASES)


def test_the_map_shows_who_was_first_and_hatches_what_was_only_simulated(tmp_path: Path) -> None:
    kept = atlas.Kept(tmp_path / "runs.jsonl")
    real, virtual = atlas.CELLS[:2]
    for seed in range(3):
        for protocol, period in (("ddp", 2.0), ("asp", 1.0), ("bsp", 3.0)):
            kept.add(a_run(real.case.name, protocol, seed, period + 0.01 * seed), virtual=False)
        kept.add(a_run(f"virtual: {real.case.name}", "asp", seed, 1.1), virtual=True)
        kept.add(a_run(f"virtual: {virtual.case.name}", "hsp", seed), virtual=True)
    again = atlas.Kept(tmp_path / "runs.jsonl")
    assert [len(again.real), len(again.virtual)] == [9, 6]
    svg = atlas.picture(again)
    texts = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"asp", "hsp", "2.0 × DDP, 7.1 s", "then ddp, 14.1 s"} <= set(texts)
    assert svg.count("url(#hatch)") == 1
    assert atlas.fidelity(again) == "1 times predicted, 9% off (median); winners right in 1 of 1 cells"
    assert [row[2] for row in atlas.table(again)[1:]] == ["asp", "ddp", "bsp"]
