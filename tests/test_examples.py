"""Training scripts as people write them: two added lines make each a Paceline script, and none is needed alone."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy
import pytest

from support.runs import Run, run, side_by_side

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = ("mnist", "char_gpt", "resnet")
PROTOCOLS = ("bsp", "asp", "ssp")
FLAGS = ("-n", "4", "--threads", "1", "--record", "0", "--tee", "none")

STEPS = 3  # of each worker
SAMPLES, BATCH, EPOCHS = 60, 8, 2  # 8 batches an epoch, the last one of 4
ARGS = {
    "mnist": f"--data tiny.npz --train-samples {SAMPLES} --batch-size {BATCH} --epochs {EPOCHS} --log-interval 1",
    "char_gpt": f"--steps {STEPS} --warmup 1 --batch-size 2 --context 16 --width 16 --heads 2 --layers 1 --sample 9 "
    "--log-interval 1",
    "resnet": f"--width 4 --synthetic-samples {SAMPLES} --batch-size {BATCH} --epochs {EPOCHS} --log-interval 1",
}

Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """`SCRIPT: PROTOCOL` by four workers, and `alone`: each alone, and one without Paceline's lines."""
    folder = tmp_path_factory.mktemp("runs")
    random = numpy.random.default_rng(0)
    sizes = {"train": SAMPLES + 9, "test": 20}
    images = {f"{part}_images": random.integers(0, 256, (n, 28, 28), numpy.uint8) for part, n in sizes.items()}
    labels = {f"{part}_labels": random.integers(0, 10, n, numpy.uint8) for part, n in sizes.items()}
    numpy.savez(folder / "tiny.npz", **images, **labels)
    args = {script: text.replace("tiny.npz", str(folder / "tiny.npz")).split() for script, text in ARGS.items()}
    (folder / "plain.py").write_text(with_own_clipping(without_paceline((EXAMPLES / "char_gpt.py").read_text())))

    def call(script: str, protocol: str) -> Callable[[], Run]:
        more = ["--schedule", "multistep" if protocol == "bsp" else "onecycle"] if script == "resnet" else []
        file = EXAMPLES / f"{script}.py"
        return partial(run, file, "-p", protocol, *FLAGS, args=[*args[script], *more], tmp_path=folder)

    scripts_alone = {
        "mnist": [EXAMPLES / "mnist.py", "--dry-run", "--epochs", "1"],
        "char_gpt": [EXAMPLES / "char_gpt.py", *args["char_gpt"]],
        "resnet": [EXAMPLES / "resnet.py", *args["resnet"], "--schedule", "onecycle"],
        "plain": [folder / "plain.py", *args["char_gpt"]],
    }
    calls = {"alone": partial(alone, scripts_alone, folder)}
    calls |= {f"{script}: {protocol}": call(script, protocol) for script in SCRIPTS for protocol in PROTOCOLS}
    with side_by_side(calls) as futures:
        yield futures


ALONE = """
import json, os, runpy, sys
import torch._dynamo  # once for all of them, and nothing is computed before they fork

for name, command in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        os.dup2(os.open(name + ".out", os.O_CREAT | os.O_WRONLY), 1)
        sys.argv = command
        sys.path[0] = os.path.dirname(command[0])
        runpy.run_path(command[0], run_name="__main__")
        break
    assert os.wait()[1] == 0, command
"""


def alone(commands: dict[str, list[Path | str]], folder: Path) -> Run:
    """As `python SCRIPT ARGS`, one after the other; each leaves what it printed in `NAME.out`."""
    command = [sys.executable, "-c", ALONE, json.dumps(commands, default=str)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return Run(code=ended.returncode, out=ended.stdout, err=ended.stderr, folder=folder)


def without_paceline(text: str) -> str:
    """The script as it was before the two lines were added."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() != "import paceline" and "paceline." not in line)


def with_own_clipping(text: str) -> str:
    """The script without Paceline that clips as `prepare` does: the gradients in the optimizer's order."""
    asks = "clip_grad_norm_(model.parameters(), math.inf)"
    assert asks in text
    return text.replace(asks, "clip_grad_norm_(decayed + others, args.clip)")


def losses(text: str) -> list[float]:
    """What was printed after the word `loss`."""
    return [float(value) for value in re.findall(r"\bloss ([^\s,]+)", text)]


@pytest.mark.parametrize("script", ["digits", *SCRIPTS])
def test_an_example_is_a_plain_script_and_two_lines(script: str) -> None:
    text = (EXAMPLES / f"{script}.py").read_text()
    added = [line.strip() for line in text.splitlines() if line not in without_paceline(text).splitlines()]
    assert len(added) == 2
    assert added[0] == "import paceline"
    assert re.fullmatch(r"model, optimizer(, loader)? = paceline\.prepare\(model, optimizer.*\)", added[1])

    plain = without_paceline(text)
    code = plain.splitlines()[ast.parse(plain).body[0].end_lineno :]  # what comes after the docstring
    compile(plain, script, "exec")
    assert not [line for line in code if "paceline" in line.lower()]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_trains_with_four_workers(script: str, protocol: str, runs: Runs) -> None:
    ended = runs[f"{script}: {protocol}"].result().completed()
    summary = ended.summary
    steps = [row["steps"] for row in summary["per_worker"]]

    assert summary["outcome"] == "completed"
    if script == "char_gpt":
        assert steps == [STEPS] * 4
    else:
        assert sum(steps) == EPOCHS * math.ceil(SAMPLES / BATCH)
        assert (summary["samples"], summary["samples_missed"]) == (EPOCHS * SAMPLES, 0)
        assert math.isfinite(summary["evaluations"][-1]["loss"])
    assert "clip" not in ended.err
    assert summary["steps"] == sum(steps)
    assert len(ended.rows("SELECT worker, step FROM applied_updates")) == sum(steps)
    printed = [losses(ended.log(worker)) for worker in range(4)]
    assert sum(map(len, printed)) >= sum(steps)
    assert all(math.isfinite(loss) for values in printed for loss in values)
    assert all(value.isfinite().all() for value in ended.final().values())


def printed_alone(script: str, runs: Runs) -> str:
    """What that script printed alone."""
    return (runs["alone"].result().completed().folder / f"{script}.out").read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_alone(script: str, runs: Runs) -> None:
    printed = losses(printed_alone(script, runs))
    assert printed
    assert all(map(math.isfinite, printed))


def test_alone_an_example_prints_what_it_prints_without_paceline(runs: Runs) -> None:
    plain = printed_alone("plain", runs)
    assert len(losses(plain)) == STEPS
    assert plain == printed_alone("char_gpt", runs)


def test_a_rate_that_changes_with_the_batch_comes_to_its_end_alone(runs: Runs) -> None:
    rates = [float(rate) for rate in re.findall(r"lr (\S+)", printed_alone("resnet", runs))]
    assert len(rates) == EPOCHS * math.ceil(SAMPLES / BATCH)
    assert rates[-1] < rates[0] < max(rates)
