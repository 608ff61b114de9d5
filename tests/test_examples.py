"""Training scripts as people write them: two added lines make each a Paceline script, and none is needed alone."""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from support.runs import run

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


def without_paceline(text: str) -> str:
    """The script as it was before the two lines were added."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() != "import paceline" and "paceline." not in line)


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


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, list[str]]:
    """Of each script, for a small training. The data are made up."""
    random = numpy.random.default_rng(0)
    sizes = {"train": SAMPLES + 9, "test": 20}
    images = {f"{part}_images": random.integers(0, 256, (n, 28, 28), numpy.uint8) for part, n in sizes.items()}
    labels = {f"{part}_labels": random.integers(0, 10, n, numpy.uint8) for part, n in sizes.items()}
    numpy.savez(tmp_path / "tiny.npz", **images, **labels)
    return {script: text.replace("tiny.npz", str(tmp_path / "tiny.npz")).split() for script, text in ARGS.items()}


def losses(text: str) -> list[float]:
    """What was printed after the word `loss`."""
    return [float(value) for value in re.findall(r"\bloss ([^\s,]+)", text)]


@pytest.mark.real_run
@pytest.mark.parametrize(("script", "protocol"), list(zip(SCRIPTS, PROTOCOLS, strict=True)))
def test_an_example_trains_with_four_workers_and_alone(
    script: str, protocol: str, arguments: dict[str, list[str]], tmp_path: Path
) -> None:
    file = EXAMPLES / f"{script}.py"
    ended = run(file, "-p", protocol, *FLAGS, args=arguments[script], tmp_path=tmp_path).completed()
    summary = ended.summary
    steps = [row["steps"] for row in summary["per_worker"]]
    if script == "char_gpt":
        assert steps == [STEPS] * 4
    else:
        assert sum(steps) == EPOCHS * math.ceil(SAMPLES / BATCH)
        assert (summary["samples"], summary["samples_missed"]) == (EPOCHS * SAMPLES, 0)
        assert math.isfinite(summary["evaluations"][-1]["loss"])
    assert len(ended.rows("SELECT worker, step FROM applied_updates")) == sum(steps)
    assert all(value.isfinite().all() for value in ended.final().values())
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, file, *arguments[script]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert alone.returncode == 0, alone.stderr
    for printed in (alone.stdout, *map(ended.log, range(4))):
        assert losses(printed)
        assert all(map(math.isfinite, losses(printed)))
