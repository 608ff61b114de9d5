"""`paceline replay`: real runs made again, to the same bits; and what it says when they can't be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch

from paceline.host.processor import cpuinfo, vendor_and_model
from support import nursery
from support.runs import Run, run, side_by_side
from support.scripts import that_draws

pytestmark = pytest.mark.real_run

SCRIPT = that_draws()

UNEQUAL = """
[cluster]
nodes = 2
compute = "4ms"
jitter = 0.4
[[worker]]
index = 3
speed = 0.4
[[event]]
worker = 1
at_step = 4
kill = true
"""

PROTOCOLS = ("asp", "bsp", "ssp", "ad-psgd")
Runs = dict[str, Future[tuple[Run, Run]]]


def made(folder: Path, protocol: str, *flags: str, script: str = SCRIPT) -> Run:
    folder.mkdir()
    (folder / "unequal.toml").write_text(UNEQUAL)
    scenario = ("--scenario", str(folder / "unequal.toml"))
    return run(script, "-n", "4", "-p", protocol, *scenario, *flags, "--tee", "none", tmp_path=folder).completed()


def replayed(recorded: Run, *flags: str, name: str = "again") -> Run:
    folder = recorded.folder.parent / name
    process = nursery.Process(["replay", str(recorded.folder), "--out", str(folder), *flags])
    out, err = process.communicate(timeout=120)
    return Run(code=process.returncode, out=out, err=err, folder=folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of each of these protocols a run in which one worker is slow and one dies, and its replay."""
    folder = tmp_path_factory.mktemp("replays")

    def call(protocol: str) -> Callable[[], tuple[Run, Run]]:
        def both() -> tuple[Run, Run]:
            recorded = made(folder / protocol.replace(":", " "), protocol, "--threads", "1")
            return recorded, replayed(recorded)

        return both

    with side_by_side({protocol: call(protocol) for protocol in PROTOCOLS}) as futures:  # type: ignore[arg-type]
        yield futures  # type: ignore[misc]


def test_until_stops_at_a_version_and_leaves_it_on_disk(runs: Runs) -> None:
    recorded, _ = runs["asp"].result()
    version, sha256 = recorded.rows("SELECT version, sha256 FROM versions ORDER BY version")[2]
    again = replayed(recorded, "--until", str(version), name="until")
    assert again.code == 0, again.out + again.err
    parameters = safetensors.torch.load_file(recorded.folder / "versions" / f"{version:08d}.safetensors")
    final = again.final()
    assert final.keys() == parameters.keys()
    named = [name for name in final if "running" not in name and "num_batches" not in name]
    assert named
    assert all(final[name].equal(parameters[name]) for name in named)
    assert again.summary["final_parameters_sha256"] == sha256
    assert again.summary["versions"] == version


def edited(recorded: Run, name: str, statement: str, *values: object) -> Run:
    """The same run with a ledger that somebody has changed."""
    folder = recorded.folder.parent / name
    shutil.copytree(recorded.folder, folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(statement, values)
    return Run(code=0, out="", err="", folder=folder)


def test_two_swapped_updates_make_the_replay_differ_and_it_names_the_first_version(runs: Runs) -> None:
    recorded, _ = runs["asp"].result()
    rows = recorded.rows("SELECT id, version, body FROM orders WHERE kind = 'ApplyUpdate' ORDER BY id")
    place = next(at for at in range(20, len(rows)) if rows[at - 1][2] != rows[at][2])
    (one, first, body), (other, second, following) = rows[place - 1], rows[place]
    bodies = (
        {"contributions": json.loads(body)["contributions"]},
        {"contributions": json.loads(following)["contributions"]},
    )
    changed = edited(
        recorded,
        "swapped",
        "UPDATE orders SET body = CASE id WHEN ? THEN ? ELSE ? END WHERE id IN (?, ?)",
        one,
        json.dumps({"version": first, **bodies[1]}),
        json.dumps({"version": second, **bodies[0]}),
        one,
        other,
    )
    again = replayed(changed, name="swapped-again")
    assert again.code == 3
    assert f"version {first} is the first that differs" in again.out or "is not as it was made" in again.out


def test_what_has_changed_since_is_said_before_it_starts(runs: Runs, tmp_path: Path) -> None:
    recorded, _ = runs["bsp"].result()
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("lr=0.1", "lr=0.2"))
    again = replayed(recorded, "--script", str(other), name="changed")
    assert again.code == 3
    assert again.out.splitlines()[0] == f"paceline: {other} has changed since the run was made"
    assert "version 1 is the first that differs" in again.out


def test_another_version_of_torch_is_said_with_both_versions(runs: Runs) -> None:
    recorded, _ = runs["bsp"].result()
    environment = json.dumps(
        json.loads(recorded.rows("SELECT value FROM run WHERE key = 'environment'")[0][0]) | {"torch": "1.0"}
    )
    changed = edited(recorded, "elsewhere", "UPDATE run SET value = ? WHERE key = 'environment'", environment)
    again = replayed(changed, name="elsewhere-again")
    assert again.out.startswith("paceline: the run was made with torch 1.0, and here it is ")


def test_workers_of_a_host_whose_processor_was_another_are_named(runs: Runs) -> None:
    recorded, _ = runs["bsp"].result()
    ((noted,),) = recorded.rows("SELECT environment FROM segments")
    here = json.loads(noted)
    like = {**here, "vendor": vendor_and_model(cpuinfo())[0], "threads": 1}
    there = {"node-0": like, "node-1": like | {"vendor": "Cyrix"}}
    changed = edited(recorded, "mixed", "UPDATE segments SET environment = ?", json.dumps(here | {"hosts": there}))
    again = replayed(changed, name="mixed-again")
    line = f"workers 2, 3 ran with vendor Cyrix (here {like['vendor']}): the replay can't promise their bits"
    assert again.out.splitlines()[0] == f"paceline: {line}"
    assert again.code == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--until", "100000"), "--until is 100000; the run's last version is "),
        (("--script", "nowhere.py"), "nowhere.py"),
    ],
)
def test_what_can_t_be_replayed_is_one_line(flags: tuple[str, ...], told: str, runs: Runs) -> None:
    recorded, _ = runs["bsp"].result()
    again = replayed(recorded, *flags, name="bad")
    assert again.code == 2
    assert told in again.err
    assert again.err.count("\n") == 1
    assert not again.folder.exists()


def test_until_can_be_a_version_that_was_not_recorded(runs: Runs) -> None:
    recorded, _ = runs["ssp"].result()
    again = replayed(recorded, "--until", "3", name="until-3")
    assert again.code == 0, again.out + again.err
    assert again.out.startswith("the same bits: 0 recorded versions, 3 checksums; version 3 is ")


def cut(recorded: Run, share: float) -> Run:
    """The same run, as if its launcher had been killed in the middle."""
    folder = recorded.folder.parent / "crashed"
    shutil.copytree(recorded.folder, folder)
    (folder / "summary.json").unlink()
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        (facts,) = ledger.execute("SELECT max(id) FROM facts").fetchone()
        last = int(facts * share)
        (at,) = ledger.execute("SELECT at FROM facts WHERE id = ?", (last,)).fetchone()
        ledger.execute("DELETE FROM facts WHERE id > ?", (last,))
        ledger.execute("DELETE FROM orders WHERE fact > ?", (last,))
        ledger.execute("DELETE FROM versions WHERE at > ?", (at,))
        newest = "(SELECT max(version) FROM orders WHERE kind = 'ApplyUpdate')"
        ledger.execute(f"DELETE FROM checksums WHERE version > {newest}")
    return Run(code=0, out="", err="", folder=folder)


@pytest.mark.parametrize("protocol", ["asp", "ad-psgd"])
def test_a_run_that_crashed_is_made_again_up_to_there(protocol: str, runs: Runs) -> None:
    recorded, _ = runs[protocol].result()
    crashed = cut(recorded, 0.7)
    again = replayed(crashed, name="crashed-again")
    assert again.code == 0, again.out + again.err
    assert "the run crashed before its end" in again.out
    versions = "SELECT version, sha256 FROM versions WHERE version > 0"
    whole, made = crashed.rows(versions), dict(again.rows(versions))
    assert whole
    assert all(made[version] == sha256 for version, sha256 in whole)


def test_a_replica_s_step_that_was_not_made_is_not_made_again(runs: Runs) -> None:
    """Shown the other way round: of a step that was made, the ledger says that it was not."""
    recorded, _ = runs["ad-psgd"].result()
    changed = edited(recorded, "undone", "INSERT INTO undone VALUES (0, 1)")
    again = replayed(changed, name="undone-again")
    assert again.code == 3
    assert "is the first that differs" in again.out


def test_an_interrupted_replay_says_so_and_accuses_nobody(runs: Runs) -> None:
    recorded, _ = runs["asp"].result()
    folder = recorded.folder.parent / "interrupted"
    process = nursery.Process(["replay", str(recorded.folder), "--out", str(folder)])
    ledger = folder / "ledger.sqlite"
    deadline = time.monotonic() + 60
    while not (ledger.exists() and _facts(ledger)) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode != 0:  # else it was through already
        assert process.returncode == 130, out + err
        assert "another way" not in out + err


def _facts(ledger: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM facts").fetchone()[0])
    except sqlite3.Error:
        return 0


def test_a_run_whose_workers_all_died_is_compared_up_to_there(tmp_path: Path) -> None:
    killed = SCRIPT.replace("        loss.backward()\n", "        loss.backward()\n        fail()\n", 1)
    assert killed != SCRIPT
    killed = killed.replace("import paceline\n", f"import paceline\n\n{FAIL}\n", 1)
    lenient = ("--on-loss", "continue", "--tee", "none")
    recorded = run(killed, "-n", "2", "-p", "asp", *lenient, tmp_path=tmp_path)
    assert recorded.code == 3, recorded.out + recorded.err
    assert recorded.summary["error"] == "all workers died"
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


FAIL = """
steps = []


def fail():
    steps.append(1)
    if len(steps) == 5:
        raise SystemExit(4)
"""


ITS_OWN_LOOP = """
import torch
import paceline
model = torch.nn.Linear(4, 1)
model, optimizer = paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(1_000):  # of which nobody else knows
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_run_whose_work_only_its_limit_of_steps_said_is_made_again(tmp_path: Path) -> None:
    flags = ("-n", "2", "-p", "sync-switch:switch_at=0.5", "--max-steps", "8", "--threads", "1")
    recorded = run(ITS_OWN_LOOP, *flags, tmp_path=tmp_path)
    assert recorded.summary["outcome"] == "completed"
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err


@pytest.mark.parametrize(("protocol", "dies"), [("bsp", "0"), ("ad-psgd", "1")])
def test_a_run_is_made_again_without_a_worker_that_died_before_training_began(
    protocol: str, dies: str, tmp_path: Path
) -> None:
    """What killed it may not befall the replay."""
    kills = 'if os.environ.get("DIES") == str(paceline.worker()): os.kill(os.getpid(), signal.SIGKILL)'
    script = SCRIPT.replace("torch.manual_seed(3)\n", f"torch.manual_seed(3)\n{kills}\n", 1)
    recorded = run(script, "-n", "3", "-p", protocol, tmp_path=tmp_path, env={"DIES": dies}).completed()
    assert f"worker {dies} died" in recorded.err
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out
