"""Bad input: one clear line, the exit code that the design says, no traceback, nothing left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.job.compatibility import too_many
from paceline.protocols import registry
from paceline.training.checks import check
from support.launch import Launch
from support.leftovers import Traces
from support.runs import Run, ended, start
from support.scripts import training

GOOD = training()


def the_line(err: str) -> str:
    """The one line of ours; ours is all that there is."""
    assert "Traceback" not in err, err
    lines = err.splitlines()
    assert len(lines) == 1, f"one line was to be there:\n{err}"
    assert lines[0].startswith("paceline: "), err
    return lines[0].removeprefix("paceline: ")


# --- found before anything is started: what was asked, given, allowed, and what to do

SCENARIOS = {
    "index.toml": "[[worker]]\nindex = 2\nspeed = 0.5\n",
    "hosts.toml": "[[host]]\nworkers = 1\n[[host]]\nworkers = 2\n",
    "paced.toml": "[network]\nbandwidth = '1Gbit/s'\n",
    "twice.toml": 2 * "[[event]]\nworker = 1\nat_step = 3\nkill = true\n",
    "not.toml": "workers\n",
    "short.toml": "[cluster]\ncompute = '0.0000000000000000000001us'\n",
}
FILES = {
    **SCENARIOS,
    "train.py": GOOD,
    "not_python.py": "def train(:\n    pass\n",
    "run/ledger.sqlite": "",
    "run/summary.json": "{}",
    "piped/ledger.sqlite": "",
}

LISTENS = ["--listen", "127.0.0.1:0"]
TWO = [*LISTENS, "--hosts", "2"]
KNOWN = ", ".join(registry())

WRONG = [
    (["run", "-p", "spp", "train.py"], f'unknown protocol "spp" (did you mean "ssp"?); known: {KNOWN}'),
    (["run", "-n", "0", "train.py"], '-n is "0"; it must be a whole number, 1 or more'),
    (["run", "--max-seconds", "-1", "train.py"], '--max-seconds is "-1"; it must be a number of seconds above 0'),
    (["run", "--devices", "cuda:0", "train.py"], '--devices is "cuda:0"; write device numbers or cpu, such as 0,1 or'),
    (["run", "--seed", "9" * 5000, "train.py"], f'--seed is "{"9" * 40}…"; it must be a whole number'),
    (["run", "--host-timeout", "0.5", "train.py"], '--host-timeout is "0.5"; it must be 1 or more'),
    (["run", "--shards-on", "all", "train.py"], "--shards-on is all, and the run has one host, whose store is whole"),
    (["run", "--emulate-hosts", "2", "--shards-on", "x", "train.py"], 'names "x", and the hosts are node-0, node-1'),
    (["run", "-p", "ddp", "--shards-on", "head", "train.py"], "--shards-on is given, and -p ddp, which can't follow"),
    (["run", "--scenario", "short.toml", "train.py"], "it must be 0, or 0.001us or more"),
    (["run", "pipe"], "pipe: Not a regular file; name the training script to run"),
    (["run", "--out", "x" * 5000, "train.py"], "File name too long; name another one"),
    (["run", "train.py", "caf\udce9"], "'caf\\udce9' is not UTF-8"),
    (["check", "piped"], "piped/summary.json: no summary can be read there ([Errno 22] Not a regular file)"),
    (["run", "--tee", "some", "train.py"], "argument --tee: invalid choice: 'some' (choose from"),
    (["run", "-p", "sync-switch:first=asp,stragglers=elastic", "train.py"], "no worker waits for a straggler; name a"),
    (["run", "missing.py"], "missing.py: No such file or directory; name the training script to run"),
    (["run", "not_python.py"], "not_python.py is not Python: invalid syntax, line 1"),
    (["run", "-p", "ssp,bound=3", "train.py"], 'unknown protocol "ssp,bound=3" (did you mean "ssp:bound=3"?); known'),
    (["run", "-p", "bsp,aps", "train.py"], "(each -p names one; commands that take several take -p bsp -p asp)"),
    (["rnu", "train.py"], 'unknown command "rnu" (did you mean "run"?); known: run, join,'),
    (["run", "--worker", "4", "train.py"], 'unrecognized arguments: --worker (did you mean "--workers"?); see'),
    (
        ["simulate", "-p", "bsp", "--scenario", "c.toml"],
        "unrecognized arguments: --scenario; the cluster is an argument, not a flag: paceline simulate CLUSTER.toml",
    ),
    (["run", "--bound", "3", "train.py"], "--bound (bound is a protocol's parameter: -p ssp:bound=3); see"),
    (["simulate", "--group-size", "3"], "(group_size is a protocol's parameter: -p ripples:group_size=3); see"),
    (["train.py"], 'unknown command "train.py"; to train with that script: paceline run train.py'),
    (
        ["run", "-p", "asp", "-p", "bsp", "train.py"],
        "run takes one protocol, and was given -p asp -p bsp; paceline compare takes several",
    ),
    (["run", "--target", "accuracy", "train.py"], "or the shell takes the sign away: --target 'accuracy>=0.9'"),
    (["run", "--out", "run", "train.py"], "--out run holds a run already; name another folder, or remove this one"),
    (["run", "--scenario", "not.toml", "train.py"], "not.toml: line 1 is not valid TOML"),
    (
        ["run", "-n", "2", "--scenario", "index.toml", "train.py"],
        "index.toml: worker table 1: index is 2; with 2 workers it must be from 0 to 1",
    ),
    (["run", *LISTENS, "--hosts", "3:2", "train.py"], "it begins with more hosts than there may be; write the lower"),
    (["run", *LISTENS, "train.py"], "--listen waits for other hosts: say how many there are"),
    (["run", *TWO, "-p", "ddp", "train.py"], "--listen: ddp runs on one host only"),
    (["run", *TWO, "--emulate-hosts", "2", "train.py"], "give one of the two"),
    (["run", *TWO[:3], "1:2", "--shards-on", "all", "train.py"], "is all, and --hosts lets hosts come later"),
    (["run", *TWO, "--send", "train.py", "train.py"], "--send train.py: it is no folder"),
    (["run", "--listen", "127.0.0.1", "--hosts", "2", "train.py"], '--listen is "127.0.0.1"; write an address and'),
    (["run", "--hosts", "2", "train.py"], "such as --listen 10.0.0.1:7117, or give --emulate-hosts"),
    (["run", "--name", "a", "train.py"], "--name is a, and no machine can join"),
    (["run", "--send", ".", "train.py"], "such as --listen 10.0.0.1:7117, or name machines with --on"),
    (["run", "--scenario", "hosts.toml", "-p", "ddp", "train.py"], "hosts.toml: -p ddp runs on one host"),
    (["run", "--scenario", "paced.toml", "--emulate-hosts", "2", "train.py"], "a [network], which is modelled on one"),
    (["run", "--scenario", "twice.toml", "train.py"], "event 2: worker 1 is killed, which event 1 has done by then"),
    (["join", "7117"], 'HEAD:PORT is "7117"; write an address and a port'),
    (["join", "--wait", "127.0.0.1:7117"], "--wait takes 127.0.0.1:7117 for its seconds; write --wait after HEAD:PORT"),
    (["join", "127.0.0.1:7117", "--name", "a/b"], "--name is 'a/b'; write 1 to 64 printable characters, no /"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(arguments) or "nothing" for arguments, _ in WRONG])
def test_a_wrong_command_line_is_one_line_and_2_and_makes_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for pipe in ("pipe", "piped/summary.json"):
        (tmp_path / pipe).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / pipe)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in the_line(captured.err)
    assert captured.out == ""
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == FILES.keys()


# --- found by prepare, of what it is given

UNFIT = [
    (
        "optimizer = SGD(nn.Linear(2, 2).parameters())",
        "the optimizer's parameter 0 of group 0, of shape [2, 2], is",
    ),
    ("model.requires_grad_(False)", "the model has no trainable parameters; at least one must have requires_grad=True"),
    ("optimizer.inner = SGD(model.parameters())", "of class SGD, wraps another one, and Paceline can't tell which of"),
    ("optimizer.mine = list(model.parameters())", 'keeps parameters in its attribute "mine"; Paceline steps others in'),
    ("optimizer.mine = {id(model.weight)}", 'keeps parameters in its attribute "mine"; Paceline steps others in the'),
    ("optimizer.mine = {model.weight: 0.1}", 'keeps parameters in its attribute "mine"; Paceline steps others in th'),
    ("optimizer.state['count'] = 0", "the optimizer's state has keys that are no parameters; keep them in its"),
    (
        "model.seen = model.weight.t()",
        '"seen" is a view of the parameter "weight", which moves in prepare(); make',
    ),
    ("model.register_buffer('shadow', model.weight.data)", 'the buffer "shadow" shares the memory of the parameter "w'),
    ("model.register_buffer('scale', torch.ones(1).expand(4))", 'elements of the buffer "scale" share memory, as ex'),
    ("model.register_buffer('graph', torch.eye(4).to_sparse())", 'the buffer "graph" is sparse_coo, not dense; repl'),
    ("model.graph = nn.Parameter(torch.eye(4).to_sparse())", 'the parameter "graph" is sparse_coo, not dense; repla'),
    ("model.words = nn.Embedding(10, 4, sparse=True)", 'the layer "words" makes sparse gradients, which can\'t be'),
    ("epochs = True", "prepare() got epochs=True; it must be a whole number, 1 or more"),
    ("optimizer.param_groups[0]['lr'] = 'x'", "the optimizer's learning rate is 'x' in group 0; it must be a number"),
]


@pytest.mark.parametrize(("change", "said"), UNFIT, ids=[change for change, _ in UNFIT])
def test_what_can_not_be_trained_is_refused_by_prepare(change: str, said: str) -> None:
    model = nn.Linear(4, 2)
    given = {"torch": torch, "nn": nn, "SGD": torch.optim.SGD, "model": model, "epochs": None}
    given["optimizer"] = torch.optim.SGD(model.parameters())
    exec(change, given)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(given["model"], given["optimizer"], given["epochs"], None, None)


# --- found by the script's own doing: the same, and the run's folder is gone again

IN_SCRIPT: dict[str, tuple[str, tuple[str, ...], str]] = {
    "attributes of a user's own optimizer that change, of which the first is named": (
        training(
            before="""
            class Mine(torch.optim.SGD):
                factor = 1.0

            optimizer = Mine(model.parameters(), lr=0.1)
            """,
            inside="optimizer.factor, optimizer.one, optimizer.two, optimizer.three = 0.5, 1, 2, 3",
        ),
        ("-n", "2"),
        'the script changed the optimizer\'s attribute "factor", which does not reach the store',
    ),
    "a model that changes its type between prepare and the first step": (
        training("if step == 0: model.double(); x, y = x.double(), y.double()"),
        ("-n", "2"),
        'the parameter "weight" is torch.float64 [2, 4] now and was torch.float32 [2, 4] in prepare()',
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """Two at a time: most of what they take is the start of one process."""

    def go(name: str, number: int) -> Run:
        script, flags, _ = IN_SCRIPT[name]
        folder = tmp_path_factory.mktemp(f"bad-{number}")
        traces = Traces(folder / "temporary")
        run = ended(start(script, *flags, tmp_path=folder, env=traces.environment))
        traces.assert_nothing_left()
        return run

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(go, name, number) for number, name in enumerate(IN_SCRIPT)}


@pytest.mark.parametrize("name", IN_SCRIPT)
def test_what_a_script_asks_wrongly_is_one_line_and_2_and_leaves_nothing(name: str, runs: Any) -> None:
    run = runs[name].result()
    line = the_line(run.err)
    assert IN_SCRIPT[name][2] in line
    assert run.code == 2
    assert run.out == ""
    assert not run.folder.exists()


# --- runs that fail: 3


def test_a_run_whose_evaluate_raises_ends_with_3_and_says_why_once(launch: Launch) -> None:
    run = launch.run(training(before="def evaluate(model): raise KeyError('labels')"), "-n", "2")
    why = "evaluate() raised, on version 2: KeyError: 'labels'"
    assert run.code == 3, run.err
    assert run.summary["outcome"] == "failed"
    assert why in run.summary["error"]
    shown = " ".join((run.out + run.err).split())
    assert shown.count(why) == shown.count("Traceback") == 1, run.out + run.err
    assert "paceline/" not in shown.replace(str(run.folder.parent), "")


def test_more_workers_than_there_is_memory_for_are_refused_before_any_is_started() -> None:
    assert too_many(4, 4 * 35_000_000) == ""
    told = too_many(5, 4 * 35_000_000)
    assert told.startswith("5 workers take at least 175,000,000 bytes of memory")
    assert told.endswith("and 140,000,000 are available; ask for fewer with -n")
