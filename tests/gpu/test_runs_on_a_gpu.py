"""Runs whose workers have their models on a GPU: `pytest -m gpu -n 4 tests/gpu`, on a machine that has one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.protocols import registry
from paceline.records.check import check
from paceline.records.reading import open_run
from support.fake_device import DIES as DIES_IN_A_COPY
from support.replays import broken_replay
from support.runs import Run, run

ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # else cuBLAS refuses to be deterministic

SCRIPT = """
import os, signal
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline
torch.use_deterministic_algorithms(True)
torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Linear(6, 1200), nn.BatchNorm1d(1200), nn.Dropout(0.2), nn.Tanh(), nn.Linear(1200, 1200), nn.Linear(1200, 3)
).to(device)
optimizer = {optimizer}
data = TensorDataset(torch.randn({samples}, 6), torch.randint(0, 3, ({samples},)))
loader = DataLoader(data, batch_size=8, shuffle=True)
{before}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
def places():
    return [parameter.data_ptr() for parameter in model.parameters()]
{prepared}
step = 0
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
{inside}
        step += 1
paceline.finish()
{after}
"""
PLAIN = """
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        paceline.log(loss=loss.item())
        optimizer.step()
        optimizer.zero_grad()
"""
DIES = """
        if paceline.worker() == 1 and step == 4:
            import threading
            threading.Timer(0.0005, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
"""
"""Within its step: as it computes, or as its copies are on their way."""


def script(
    inside: str = PLAIN,
    *,
    before: str = "",
    prepared: str = "",
    after: str = "",
    optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
    samples: int = 240,
) -> str:
    return SCRIPT.format(
        inside=inside, before=before, prepared=prepared, after=after, optimizer=optimizer, samples=samples
    )


def ran(text: str, *flags: str, tmp_path: Path, protocol: str = "bsp", workers: int = 2) -> Run:
    common = ("-n", str(workers), "-p", protocol, "--threads", "1")
    return run(text, *common, *flags, tmp_path=tmp_path, env=ENVIRONMENT).completed()


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_a_run_with_a_death_in_the_middle_of_a_step_ends_on_the_same_bits_again(protocol: str, tmp_path: Path) -> None:
    recorded = ran(script(DIES + PLAIN), tmp_path=tmp_path, protocol=protocol, workers=3)
    assert check(open_run(recorded.folder, registry())).wrong is None
    assert broken_replay(recorded) == []


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce", "ps-plus"])
@pytest.mark.parametrize("way", ["take", "bring_bytes"])
def test_a_death_in_the_middle_of_a_copy_costs_that_worker_and_no_bits(way: str, protocol: str, tmp_path: Path) -> None:
    first = DIES_IN_A_COPY.format(way=way, copies=4)
    flags = ("-n", "3", "-p", protocol, "--threads", "1", "--shards", "static")  # so that each has steps to make
    done = run(script(), *flags, tmp_path=tmp_path, env=ENVIRONMENT, first=first).completed()
    assert done.summary["per_worker"][1]["left"]["reason"] == "died"
    assert check(open_run(done.folder, registry())).wrong is None
    assert broken_replay(done) == []


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce"])
def test_synchronous_training_comes_out_as_on_the_cpu(protocol: str, tmp_path: Path) -> None:
    finals = []
    for devices in ("0", "cpu"):
        folder = tmp_path / devices
        folder.mkdir()
        text = script(samples=64).replace("Dropout(0.2)", "Dropout(0.0)")
        finals.append(ran(text, "--devices", devices, tmp_path=folder, protocol=protocol).final())
    for name, value in finals[0].items():
        assert torch.allclose(value, finals[1][name], rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("protocol", ["bsp", "asp", "all-reduce", "ps-plus"])
def test_workers_on_a_gpu_and_on_the_cpu_train_in_one_run(protocol: str, tmp_path: Path) -> None:
    text = script(after="print('trained on', next(model.parameters()).device.type)")
    done = ran(text, "--devices", "0,cpu", tmp_path=tmp_path, protocol=protocol)
    assert "trained on cuda" in done.log(0)
    assert "trained on cpu" in done.log(1)
    times = done.rows("SELECT DISTINCT worker FROM step_times WHERE to_device IS NOT NULL ORDER BY worker")
    assert times == [(0,)]


SCALED = """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
AUTOCAST = PLAIN.replace("loss = nn", "with torch.autocast('cuda', dtype=torch.bfloat16): loss = nn")
COMPILED = PLAIN.replace("model(x)", "compiled(x)")
ACCUMULATED = """
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""
PAST_AUTOGRAD = PLAIN.replace(
    "        paceline.log", "        model[0].weight.grad.data.clamp_(-0.01, 0.01)\n        paceline.log"
)
STATES = """
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            there = model.state_dict()
            assert all(value.is_cuda for value in there.values())
            optimizer.state_dict()
"""
HABITS = {
    "scaled": {"inside": SCALED, "before": "scaler = torch.amp.GradScaler('cuda')"},
    "autocast": {"inside": AUTOCAST},
    "compiled": {
        "inside": COMPILED,
        "prepared": "compiled = torch.compile(model, mode='reduce-overhead'); there = places()",
        "after": "assert places() == there",
        "samples": 320,
    },
    "accumulated": {"inside": ACCUMULATED},
    "past autograd": {"inside": PAST_AUTOGRAD},
    "states": {"inside": STATES},
    "fused": {"optimizer": "torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)"},
    "capturable": {"optimizer": "torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)"},
    "in bfloat16": {
        "optimizer": "torch.optim.SGD(model.to(torch.bfloat16).parameters(), lr=0.05)",
        "inside": PLAIN.replace("model(x)", "model(x.bfloat16()).float()"),
    },
    "saved in two types": {
        "optimizer": "torch.optim.SGD((model[4].bfloat16(), model)[1].parameters(), lr=0.05)",
        "inside": AUTOCAST,
        "after": "import io; torch.save(model.state_dict(), io.BytesIO()); torch.save(model, io.BytesIO())",
    },
    "partly in memory": {
        "optimizer": "torch.optim.SGD([model.register_parameter('scale', nn.Parameter(torch.ones(3))), "
        "*model.parameters()][1:], lr=0.05)",
        "inside": PLAIN.replace("model(x)", "model(x) * model.scale.to(device)"),
    },
    "loaded past autograd": {"prepared": "for p in model.parameters(): p.data.fill_(0.01)"},
}


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce", "ps-plus"])
@pytest.mark.parametrize("habit", sorted(HABITS))
def test_what_scripts_do_on_gpus_is_trained_and_replayed(habit: str, protocol: str, tmp_path: Path) -> None:
    recorded = ran(script(**HABITS[habit]), tmp_path=tmp_path, protocol=protocol)  # type: ignore[arg-type]
    assert broken_replay(recorded) == []


PLAIN_HABITS = ("scaled", "autocast", "compiled", "accumulated", "past autograd", "fused")


@pytest.mark.parametrize("habit", PLAIN_HABITS)
def test_one_worker_comes_out_as_the_script_does_without_paceline(habit: str, tmp_path: Path) -> None:
    given = HABITS[habit]
    saves = "torch.save({key: value.cpu() for key, value in model.state_dict().items()}, os.environ['SAVED'])"
    text = script(**{**given, "after": f"{given.get('after', '')}\n{saves}"})  # type: ignore[arg-type]
    for drawn, instead in (("shuffle=True", "shuffle=False"), ("Dropout(0.2)", "Dropout(0.0)")):
        assert drawn in text
        text = text.replace(drawn, instead)
    (tmp_path / "plain.py").write_text(text)
    environment = {**os.environ, **ENVIRONMENT, "SAVED": str(tmp_path / "plain.pt")}
    subprocess.run([sys.executable, tmp_path / "plain.py"], env=environment, check=True, timeout=120)
    env = {**ENVIRONMENT, "SAVED": str(tmp_path / "ours.pt")}
    run(text, "-n", "1", "-p", "bsp", tmp_path=tmp_path, env=env).completed()
    plain, ours = torch.load(tmp_path / "plain.pt"), torch.load(tmp_path / "ours.pt")
    for name, value in plain.items():
        assert torch.allclose(value.float(), ours[name].float(), rtol=1e-2, atol=2e-3), name


def test_a_parameter_that_is_written_past_autograd_after_the_first_step_is_refused(tmp_path: Path) -> None:
    text = script(PLAIN + "\n        if step == 2: model[0].weight.data.mul_(0.5)\n")
    done = run(text, "-n", "2", tmp_path=tmp_path, env=ENVIRONMENT)
    assert done.code == 2
    assert 'the script changed the parameter "0.weight" after the first step' in done.err


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_that_is_moved_after_it_was_prepared_is_refused(device: str, tmp_path: Path) -> None:
    moves = "" if device == "cpu" else "model.cpu()"
    text = script(before=moves, prepared=f'device = torch.device("{device}"); model.to(device)')
    done = run(text, "-n", "2", tmp_path=tmp_path, env=ENVIRONMENT)
    assert done.code == 2
    assert 'the parameter "0.weight" is on ' in done.err


def test_a_run_goes_on_from_a_snapshot_on_a_gpu(tmp_path: Path) -> None:
    from support.runs import ended, resume

    for protocol in ("bsp", "all-reduce", "ps-plus"):
        folder = tmp_path / protocol
        folder.mkdir()
        first = run(
            script(
                optimizer="torch.optim.AdamW(model.parameters(), lr=1e-3)",
                prepared="state = optimizer.state_dict()['state'].values()\n"
                "assert not paceline.resumed() or all(float(one['step']) >= 4 for one in state)\n"
                "assert not paceline.resumed() or len(state) == 8",
            ),
            "-n", "2", "-p", protocol, "--max-steps", "16", "--checkpoint", "2", "--threads", "1",
            tmp_path=folder, env=ENVIRONMENT,
        )  # fmt: skip
        assert first.code == 0, first.err
        again = ended(resume(first.folder, env=ENVIRONMENT))
        assert again.code == 0, again.err


def test_copies_are_measured_by_the_device(tmp_path: Path) -> None:
    done = ran(script(), tmp_path=tmp_path)
    times = done.rows("SELECT to_device, from_device FROM step_times")
    assert times
    assert all(to > 0 and back > 0 for to, back in times)
