"""What a run imports before its script starts, and the exit code that it ends with.

Some launchers are fresh. The nursery has not imported the compiler either, so that others can be forked from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from support.runs import Run, run, side_by_side
from support.scripts import script

QUIET = script("""
import importlib

COMPILER = "torch._dyn" + "amo"  # the whole word would have the launcher import it
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model[0].parameters(), lr=0.05)
optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.02})
model, optimizer = paceline.prepare(model, optimizer)

def train():
    loss = model(torch.ones(6, 3)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

seen = [COMPILER in sys.modules]
model.load_state_dict(model.state_dict())
file = io.BytesIO()
torch.save(optimizer.state_dict(), file)
file.seek(0)
optimizer.load_state_dict(torch.load(file))
losses = [train(), train()]
seen.append(COMPILER in sys.modules)
importlib.import_module(COMPILER)
losses.append(train())
optimizer.load_state_dict(optimizer.state_dict())
losses.append(train())
json.dump([seen, losses == sorted(losses, reverse=True)], open(sys.argv[1], "w"))
""")

SPEAKS = """
import json, sys
json.dump("torch._dyn" + "amo" in sys.modules, open(sys.argv[1], "w"))  # nothing here is to {word}
import torch
import paceline
model = torch.nn.Linear(2, 1)
model, optimizer = paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    folder = tmp_path_factory.mktemp("start-up")
    one = ("-n", "1", "-p", "asp", "--threads", "1")
    speaks = SPEAKS.format(word="compile")
    calls = {
        "quiet": partial(run, QUIET, *one, args=[str(folder / "quiet")], tmp_path=folder),
        "speaks": partial(run, speaks, *one, args=[str(folder / "speaks")], tmp_path=folder, fresh=True),
    }
    with side_by_side(calls) as futures:
        yield futures


def told(runs: dict[str, Future[Run]], name: str) -> Any:
    """What that script left."""
    ended = runs[name].result().completed()
    return json.loads((ended.folder.parent / name).read_text())


def test_a_script_that_trains_saves_and_loads_has_not_imported_the_compiler(runs: dict[str, Future[Run]]) -> None:
    """After a later import of the compiler it trains on. `tests/habits` has models that are compiled."""
    assert told(runs, "quiet") == [[False, False], True]


def test_a_script_whose_source_mentions_compile_finds_the_compiler_imported(runs: dict[str, Future[Run]]) -> None:
    assert told(runs, "speaks") is True


@pytest.mark.parametrize("code", [0, 130])
def test_the_program_ends_with_what_main_returns_once_all_is_written(code: int) -> None:
    program = f"""
import sys
import paceline.cli.main as program

def main(report):
    sys.stdout.write("x" * 100)  # less than a pipe's buffer
    sys.stderr.write("y")
    return {code}

program.main = main
program.command()
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run([sys.executable, "-c", program], env=buffered, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "x" * 100, "y")
