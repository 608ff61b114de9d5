"""`paceline simulate --gradients`: real workers compute what virtual time prescribes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from time import sleep

import pytest
import torch

from paceline.core.facts import GradientReady, ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.core.orders import ApplyUpdate
from paceline.records.ledger import read_facts
from paceline.training.seeding import seed_step
from support import nursery
from support.orders import epoch_order
from support.recorded import checked
from support.runs import Run, longer, run, side_by_side
from support.runs import ended as ended_run
from support.scripts import functions_of
from support.suites import each

pytestmark = pytest.mark.real_run

SEED = 7
EPOCHS, SAMPLES = 3, 90

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(90, 6), torch.randint(0, 3, (90,)))
    return model, optimizer, DataLoader(data, batch_size=8, shuffle=True)


def evaluate(model):
    model.eval()
    return {"size": sum(p.abs().sum().item() for p in model.parameters())}


if __name__ == "__main__":
    fails = "fails" in sys.argv
    epochs = 10000 if "endless" in sys.argv else 3
    model, optimizer, loader = paceline.prepare(*build(), epochs=epochs, evaluate=evaluate)
    for epoch in range(epochs):
        for x, y in loader:
            assert not (fails and epoch == 1 and paceline.worker() == 1), "this script has a bug"
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
"""
TWIN = functions_of(SCRIPT)

CLUSTER = """
[cluster]
workers = 3
compute = "100ms"
jitter = 0.2
[network]
bandwidth = "100KB/s"
latency = "1ms"
[[worker]]
index = 2
speed = 0.4
"""
DEATH = '[[event]]\nworker = 1\nat = "650ms"\nkill = true\n'
RETURN = DEATH + 'rejoin_after = "300ms"\n[[event]]\nworker = 1\nat_step = 7\nkill = true\nrejoin_after = "200ms"\n'
"""Twice."""

RETURNS = ("asp", "ad-psgd", "local-sgd:every=3")
"""Protocols with a store, with replicas, and with rounds of own steps."""
PROTOCOLS = ("asp", "hsp", "ps-plus", "ad-psgd", "ripples")
LONG = ("hsp", "ripples")
"""Others with a store and with replicas are tried by default."""
EACH = each(PROTOCOLS, long=LONG)
ROUNDS = ("bsp", "all-reduce")
Runs = dict[str, Future[Run]]


def started(folder: Path, cluster: str, *flags: str, argument: str = "") -> nursery.Process:
    """The command, in a process that has imported torch already. `argument`: the script's."""
    folder.mkdir()
    (folder / "cluster.toml").write_text(cluster)
    (folder / "train.py").write_text(SCRIPT)
    arguments = ["simulate", str(folder / "cluster.toml"), "--out", str(folder / "run"), "--seed", str(SEED)]
    process = nursery.Process([*arguments, *flags, "--gradients", str(folder / "train.py"), argument])
    process.folder = folder / "run"  # type: ignore[attr-defined]
    return process


def simulated(folder: Path, cluster: str, *flags: str, fails: bool = False) -> Run:
    """The same to its end, which has to come within a minute."""
    return ended_run(started(folder, cluster, *flags, argument="fails" if fails else ""), timeout=60)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("gradients")

    def call(name: str, cluster: str, *flags: str, fails: bool = False) -> Callable[[], Run]:
        return lambda: simulated(folder / name, cluster, *flags, fails=fails)

    calls: dict[str, Callable[[], Run]] = {}
    for protocol in PROTOCOLS if longer(request) else [one for one in PROTOCOLS if one not in LONG]:
        for time in ("once", "again"):
            calls[f"{protocol} {time}"] = call(f"{protocol} {time}", CLUSTER + DEATH, "-p", protocol)
    for protocol in ROUNDS:
        calls[protocol] = call(protocol, CLUSTER, "-p", protocol)
        flags = ("-n", "3", "-p", protocol, "--seed", str(SEED), "--threads", "1", "--tee", "none")
        calls[f"{protocol} for real"] = lambda flags=flags: run(SCRIPT, *flags, tmp_path=folder)  # type: ignore[misc]
    calls["asp alive"] = call("asp alive", CLUSTER, "-p", "asp", "--record", "1000")
    for protocol in RETURNS:
        for time in ("once", "again"):
            calls[f"{protocol} back {time}"] = call(f"{protocol} back {time}", CLUSTER + RETURN, "-p", protocol)
    calls["fails"] = call("fails", CLUSTER, "-p", "asp", fails=True)
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("protocol", EACH)
def test_every_sample_is_used_once_in_each_epoch_though_a_worker_dies(protocol: str, runs: Runs) -> None:
    ended = runs[f"{protocol} once"].result().completed()
    assert [row["left"]["reason"] for row in ended.summary["per_worker"]] == ["finished", "died", "finished"]
    assert ended.summary["samples"] == EPOCHS * SAMPLES
    counts = ended.rows("SELECT epoch, sample, count(*) FROM applied_samples GROUP BY epoch, sample")
    assert sorted(counts) == [(epoch, sample, 1) for epoch in range(EPOCHS) for sample in range(SAMPLES)]
    assert ended.summary["evaluations"][-1]["samples"] == EPOCHS * SAMPLES


@pytest.mark.parametrize("protocol", RETURNS)
def test_a_run_in_which_a_worker_dies_and_comes_back_twice_is_whole(protocol: str, runs: Runs) -> None:
    ended = runs[f"{protocol} back once"].result().completed()
    facts = [fact for fact, _ in read_facts(ended.folder / "ledger.sqlite")]
    stays = [type(fact).__name__ for fact in facts if isinstance(fact, WorkerJoined | WorkerLeft) and fact.worker == 1]
    assert stays == ["WorkerLeft", "WorkerJoined", "WorkerLeft", "WorkerJoined", "WorkerLeft"]
    copied = [fact.worker for fact in facts if isinstance(fact, ReplicaCopied)]
    assert copied == [1, 1] * (protocol == "ad-psgd")
    back = [fact for fact in facts if isinstance(fact, WorkerJoined)][-1]
    assert [fact for fact in facts[facts.index(back) :] if isinstance(fact, GradientReady) and fact.worker == 1]
    assert [row["left"]["reason"] for row in ended.summary["per_worker"]] == ["finished"] * 3
    counts = ended.rows("SELECT epoch, sample, count(*) FROM applied_samples GROUP BY epoch, sample")
    assert sorted(counts) == [(epoch, sample, 1) for epoch in range(EPOCHS) for sample in range(SAMPLES)]
    found = checked(ended.folder)
    assert found.ok, found.wrong


@pytest.mark.parametrize("name", [*EACH, *(f"{protocol} back" for protocol in RETURNS)])
def test_the_same_seed_gives_the_same_bits_and_the_same_times(name: str, runs: Runs) -> None:
    """Also if a worker dies, and comes back: how long its process takes to begin is of no consequence."""
    once, again = (runs[f"{name} {time}"].result().completed() for time in ("once", "again"))
    assert once.summary == again.summary
    assert list(read_facts(once.folder / "ledger.sqlite")) == list(read_facts(again.folder / "ledger.sqlite"))
    leases = "SELECT worker, during, epoch, batch FROM leases WHERE worker = 1 ORDER BY rowid"
    assert once.rows(leases) == again.rows(leases)
    same = (run.final() for run in (once, again))
    assert all(torch.equal(one, other) for one, other in zip(*(state.values() for state in same), strict=True))


@pytest.mark.parametrize("protocol", RETURNS)
def test_a_run_in_which_a_worker_comes_back_is_made_again_and_its_replay_is_too(protocol: str, runs: Runs) -> None:
    made = runs[f"{protocol} back once"].result().completed()
    for again in ("replay", "replay of the replay"):
        folder = made.folder.parent / again
        process = nursery.Process(["replay", str(made.folder), "--out", str(folder)])
        process.folder = folder  # type: ignore[attr-defined]
        replayed = ended_run(process, timeout=60).completed()
        assert replayed.out.startswith("the same bits: ")
        assert replayed.summary["final_parameters_sha256"] == made.summary["final_parameters_sha256"]
        found = checked(folder)
        assert found.ok, found.wrong
        made = replayed


@pytest.mark.parametrize("protocol", ROUNDS)
def test_rounds_in_virtual_time_end_on_the_bits_of_a_real_run(protocol: str, runs: Runs) -> None:
    virtual, real = (runs[name].result().completed() for name in (protocol, f"{protocol} for real"))
    assert virtual.summary["final_parameters_sha256"] == real.summary["final_parameters_sha256"]
    assert virtual.summary["wall_seconds"] > real.summary["steps"] / 3 * 0.1


def test_each_gradient_is_that_of_the_version_and_the_batch_that_the_ledger_names(runs: Runs) -> None:
    """Worked out once more here, update by update: the last version comes out to the bit."""
    ended = runs["asp alive"].result().completed()
    model, optimizer, loader = TWIN.build()
    parameters = list(model.parameters())
    orders = [epoch_order(loader.batch_sampler, SEED, epoch) for epoch in range(EPOCHS)]
    rows = ended.rows("SELECT worker, step, epoch, batch FROM batches WHERE used = 'step'")
    batches = {(worker, step): orders[epoch][batch] for worker, step, epoch, batch in rows}
    versions = {0: [p.detach().clone() for p in parameters]}
    gradients: dict[tuple[int, int], list[torch.Tensor]] = {}
    stale = 0

    def install(values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)

    for fact, made in read_facts(ended.folder / "ledger.sqlite"):
        if isinstance(fact, GradientReady):
            install(versions[fact.version])
            x, y = loader.dataset[batches[fact.worker, fact.step]]
            seed_step(SEED, fact.worker, fact.step)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            gradients[fact.worker, fact.step] = [p.grad for p in parameters if p.grad is not None]
            optimizer.zero_grad()
            stale += fact.version < max(versions)
        for order in made:
            if isinstance(order, ApplyUpdate):
                ((worker, step, _),) = order.contributions
                install(versions[order.version - 1])
                for parameter, gradient in zip(parameters, gradients.pop((worker, step)), strict=True):
                    parameter.grad = gradient
                optimizer.step()
                optimizer.zero_grad()
                versions[order.version] = [p.detach().clone() for p in parameters]
    assert stale > 10, "else it shows nothing"
    final = ended.final()
    for (name, _), value in zip(model.named_parameters(), versions[max(versions)], strict=True):
        assert torch.equal(final[name], value), name


def test_a_recorded_version_s_moment_is_the_virtual_one_at_which_it_was_ordered(runs: Runs) -> None:
    ended = runs["asp alive"].result().completed()
    ordered = {
        order.version: fact.at
        for fact, orders in read_facts(ended.folder / "ledger.sqlite")
        for order in orders
        if isinstance(order, ApplyUpdate)
    }
    recorded = dict(ended.rows("SELECT version, at FROM versions WHERE version > 0"))
    assert len(recorded) > 20
    assert recorded == {version: ordered[version] for version in recorded}
    assert {row["version"] for row in ended.summary["evaluations"]} >= recorded.keys()


def test_a_script_that_fails_fails_the_simulation_and_names_the_worker(runs: Runs) -> None:
    ended = runs["fails"].result()
    assert ended.code == 3
    assert ended.summary["outcome"] == "failed"
    assert ended.summary["error"].startswith("worker 1 died in step ")
    assert "this script has a bug" in ended.out + ended.err
    assert "worker 1 died" in ended.out + ended.err
    assert "go on" not in ended.out + ended.err, "nobody does"


def test_ctrl_c_ends_all_of_several_with_what_the_first_has_reached(tmp_path: Path) -> None:
    process = started(tmp_path / "c", CLUSTER, "-p", "asp", "-p", "bsp", argument="endless")
    folder = tmp_path / "c" / "run" / "asp"
    while process.poll() is None and not list(folder.glob("versions/*")):
        sleep(0.01)
    process.send_signal(signal.SIGINT)
    ended = ended_run(process, timeout=60)
    assert ended.code == 130
    assert ended.out.splitlines()[-1] == "asp: interrupted"
    assert "interrupted: bsp did not begin" in ended.err
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["error"]) == ("interrupted", None)
    assert not (tmp_path / "c" / "run" / "bsp").exists()


def test_the_summary_is_printed_as_json_and_the_script_s_output_goes_elsewhere(tmp_path: Path) -> None:
    ended = simulated(tmp_path / "json", CLUSTER, "-p", "bsp", "--json", "--steps", "9").completed()
    printed = json.loads(ended.out)
    assert printed == {**ended.summary, "folder": str(ended.folder)}
    assert printed["steps"] == 9
