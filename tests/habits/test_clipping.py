"""Clipping with several workers: of the mean, as DDP and one process with the whole batch do it, or a line says so."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from contextlib import closing

import pytest

from support.launch import Launch
from support.scripts import script
from support.sound import sound
from support.suites import each

SCRIPT = script("""
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.manual_seed(0)
x = torch.tensor([[1.0, 0.0], [0.0, 10.0]])
model = nn.Linear(2, 1, bias=False)
with torch.no_grad():
    model.weight.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
own, options = sys.argv[1], json.loads(sys.argv[2])
if own == "disagree":
    options["clip_grad_norm"] += paceline.worker()
loader = DataLoader(TensorDataset(x), batch_size=1)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1, **options)
for (row,) in loader:
    model(row).square().mean().backward()
    if own == "norm":
        clip_grad_norm_(model.parameters(), 1.0)
    elif own == "value":
        clip_grad_value_(model.parameters(), 1.0)
    elif own == "asks":
        clip_grad_norm_(model.parameters(), float("inf"))
    optimizer.step()
    optimizer.zero_grad()
paceline.finish()
if paceline.is_main():
    print("weights", [round(value, 3) for value in model.weight.flatten().tolist()])
""")
NORM = json.dumps({"clip_grad_norm": 1.0})
OF_THE_MEAN = [0.995, 0.5]
"""What one process with both rows comes to: the mean gradient is [1, 100]."""
EACH = {
    "bsp": OF_THE_MEAN,
    "hsp:idle=none": OF_THE_MEAN,
    "all-reduce": OF_THE_MEAN,
    "asp": [0.5, 0.5],  # two updates, each clipped by itself
    "ssp": [0.5, 0.5],
    "dssp": [0.5, 0.5],
    "ps-plus": [0.5, 0.5],  # or .75 where an update counts half, as it came late
    "ad-psgd": [0.75, 0.75],  # the mean of two replicas
    "ripples": [0.75, 0.75],
}
FLAGS = ("-n", "2", "--threads", "1", "--seed", "1", "--tee", "first")


def weights(text: str) -> list[float]:
    found: list[float] = json.loads(text[text.index("weights") + len("weights") :].splitlines()[0])
    return found


@pytest.mark.parametrize("protocol", each(EACH, default=("bsp", "all-reduce", "asp")))
def test_what_is_clipped_is_the_mean_or_each_update_that_stands_alone_and_again_in_a_replay(
    protocol: str, launch: Launch
) -> None:
    ended = launch.run(SCRIPT, "-p", protocol, *FLAGS, args=("none", NORM)).completed()
    expected = EACH[protocol]
    if protocol == "ps-plus":
        assert set(weights(ended.out)) <= {0.5, 0.75}
    else:
        assert weights(ended.out) == expected
    assert "clip" not in ended.err
    assert tomllib.loads((ended.folder / "config.toml").read_text())["clip_grad_norm"] == 1.0
    with closing(sqlite3.connect(ended.folder / "ledger.sqlite")) as ledger:
        noted = ledger.execute("SELECT value FROM run WHERE key = 'clip_grad_norm'").fetchone()
    assert json.loads(noted[0]) == 1.0
    sound(ended)


@pytest.mark.parametrize(
    ("own", "option"),
    each([("norm", "clip_grad_norm=1.0"), ("value", "clip_grad_value=1.0")], default=[("norm", "clip_grad_norm=1.0")]),
)
@pytest.mark.parametrize("protocol", each(("bsp", "asp"), default=("bsp",)))
def test_a_script_that_clips_by_itself_is_told_so_once(protocol: str, own: str, option: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-p", protocol, *FLAGS, args=(own, "{}")).completed()
    said = " ".join(ended.err.split())
    assert said.count("[.995, .500]") == said.count("[.75, .75]") == said.count(f"prepare({option})") == 1
    assert ("right while each update stands alone" in said) == (protocol == "asp")


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("norm", "the script clips gradients by itself, and prepare() got clip_grad_norm=1.0"),
        ("disagree", "clip_grad_norm=2.0, the other has clip_grad_norm=1.0; every worker must give prepare() the same"),
    ],
)
def test_what_does_not_fit_the_option_is_refused_in_one_line(own: str, line: str, launch: Launch) -> None:
    launch.run(SCRIPT, "-p", "bsp", *FLAGS, args=(own, NORM)).refused(line)
