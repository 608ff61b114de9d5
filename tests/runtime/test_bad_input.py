"""Bad input: one clear line, the exit code that the design says, no traceback, nothing left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.job.compatibility import too_many
from paceline.protocols import registry
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
    "unknown-key.toml": "[cluster]\nworkers = 2\nspeeed = 3\n",
    "unknown-event-key.toml": "[[event]]\nworker = 0\nat_stepp = 3\nkill = true\n",
    "index.toml": "[[worker]]\nindex = 2\nspeed = 0.5\n",
    "event-index.toml": "[[event]]\nworker = 7\nat_step = 3\nkill = true\n",
    "duration.toml": "[cluster]\ncompute = '400'\n",
    "two-nodes.toml": "[cluster]\nnodes = 2\n",
    "not.toml": "workers\n",
    "short.toml": "[cluster]\ncompute = '0.0000000000000000000001us'\n",
    "crowd.toml": "[cluster]\nworkers = 1000000000\n",
}
FILES = {
    **SCENARIOS,
    "train.py": GOOD,
    "not_python.py": "def train(:\n    pass\n",
    "data.bin": "\0\1\2",
    "run/ledger.sqlite": "",
    "run/summary.json": "{}",
    "piped/ledger.sqlite": "",
    "full/notes.txt": "mine",
}

KNOWN = ", ".join(registry())

WRONG = [
    (["run", "-p", "spp", "train.py"], f'unknown protocol "spp" (did you mean "ssp"?); known: {KNOWN}'),
    (["run", "-p", "xyzzy", "train.py"], f'unknown protocol "xyzzy"; known: {KNOWN}'),
    (["run", "-p", "ssp:bond=3", "train.py"], 'ssp: unknown parameter "bond" (did you mean "bound"?); known: bound'),
    (["run", "-p", "bsp:bound=3", "train.py"], 'bsp: unknown parameter "bound"; known: none'),
    (["run", "-p", "ssp:bound=x", "train.py"], 'ssp: bound is "x"; it must be a whole number'),
    (["run", "-p", "ssp:bound=-1", "train.py"], "ssp: bound is -1 steps; it must be 0 or more"),
    (["run", "-p", "ssp:bound", "train.py"], "ssp: bound has no value; write ssp:bound=VALUE"),
    (["run", "-n", "0", "train.py"], '-n is "0"; it must be a whole number, 1 or more'),
    (["run", "-n", "two", "train.py"], '-n is "two"; it must be a whole number, 1 or more'),
    (["run", "--seed", "x", "train.py"], '--seed is "x"; it must be a whole number, 0 or more'),
    (["run", "--max-steps", "0", "train.py"], '--max-steps is "0"; it must be a whole number, 1 or more'),
    (["run", "--max-seconds", "-1", "train.py"], '--max-seconds is "-1"; it must be a number of seconds above 0'),
    (["run", "--max-seconds", "nan", "train.py"], '--max-seconds is "nan"; it must be a number of seconds above 0'),
    (["run", "--target", "accuracy", "train.py"], 'target "accuracy" is not METRIC>=VALUE (or <=, >, <)'),
    (["run", "-n", "1000000000", "train.py"], '-n is "1000000000"; it must be a whole number, 100000 or less'),
    (["run", "--threads", "1000000", "train.py"], '--threads is "1000000"; it must be a whole number, 1024 or less'),
    (["run", "--devices", "cuda:0", "train.py"], '--devices is "cuda:0"; write device numbers or cpu, such as 0,1 or'),
    (["run", "--devices", "9999", "train.py"], "--devices names device 9999, and "),
    (["run", "--seed", "9" * 5000, "train.py"], f'--seed is "{"9" * 40}…"; it must be a whole number'),
    (["run", "--max-steps", "9" * 20, "train.py"], "it must be a whole number, 9007199254740992 or less"),
    (["run", "--report-waits", "1e300", "train.py"], '--report-waits is "1e300"; it must be 1000000000 or less'),
    (["run", "--host-timeout", "0.5", "train.py"], '--host-timeout is "0.5"; it must be 1 or more'),
    (["run", "--host-timeout", "x", "train.py"], '--host-timeout is "x"; it must be a number of seconds above 0'),
    (["run", "--host-timeout", "1e6", "train.py"], '--host-timeout is "1e6"; it must be 86400 or less'),
    (["run", "--shards-on", "all", "train.py"], "--shards-on is all, and the run has one host, whose store is whole"),
    (["run", "--emulate-hosts", "2", "--shards-on", "x", "train.py"], 'names "x", and the hosts are node-0, node-1'),
    (["run", "-p", "ddp", "--shards-on", "head", "train.py"], "--shards-on is given, and -p ddp, which can't follow"),
    (["run", "-p", "dssp:upper=100000000", "train.py"], "dssp: upper is 100000000 steps, and lower 3; upper must be"),
    (["simulate", "--seconds", "1e300", "c.toml"], '--seconds is "1e300"; it must be 1000000000 or less'),
    (["run", "-p", f"ssp:bound={10**300}", "train.py"], "0 steps; it must be at most 9007199254740992"),
    (["run", "--scenario", "short.toml", "train.py"], "it must be 0, or 0.001us or more"),
    (["run", "--scenario", "crowd.toml", "train.py"], "write a whole number, at least 1 and at most 100000"),
    (["run", "pipe"], "pipe: Not a regular file; name the training script to run"),
    (["run", "--scenario", "pipe", "train.py"], "pipe: it can't be read (Not a regular file)"),
    (["run", "x" * 5000 + ".py"], "File name too long; name the training script to run"),
    (["run", "--out", "x" * 5000, "train.py"], "File name too long; name another one"),
    (["run", "train.py", "caf\udce9"], "'caf\\udce9' is not UTF-8"),
    (["check", "piped"], "piped/summary.json: no summary can be read there ([Errno 22] Not a regular file)"),
    (["run", "--tee", "some", "train.py"], "argument --tee: invalid choice: 'some' (choose from"),
    (["run", "-p", "dssp:lower=5,upper=2", "train.py"], "dssp: upper is 2"),
    (["run", "-p", "dssp:lower=-1", "train.py"], "dssp: lower is -1"),
    (["run", "-p", "dssp:cap=maybe", "train.py"], 'dssp: cap is "maybe"; it must be true or false'),
    (["run", "-p", "hsp:order=fast", "train.py"], 'hsp: order is "fast"; it must be one of ready, rank'),
    (["run", "-p", "ps-plus:gate=-1", "train.py"], "ps-plus: gate is -1 steps; it must be 0 or more, or none"),
    (["run", "-p", "sync-switch:switch_at=1.5", "train.py"], "sync-switch: switch_at is 1.5"),
    (["run", "-p", "sync-switch:switch_at=nan", "train.py"], "sync-switch: switch_at is nan"),
    (
        ["run", "-p", "sync-switch:first=bps", "train.py"],
        'first is "bps": unknown protocol "bps" (did you mean "bsp"?)',
    ),
    (["run", "-p", "sync-switch:then=ssp:bound=-1", "train.py"], "ssp: bound is -1 steps; it must be 0 or more"),
    (["run", "-p", "sync-switch:then=sync-switch", "train.py"], "sync-switch can't contain itself"),
    (
        ["run", "-p", "sync-switch:then=ps-plus", "train.py"],
        'then is "ps-plus", where the optimizer runs in the workers',
    ),
    (
        ["run", "-p", "sync-switch:then=ripples", "train.py"],
        "then is ripples; it must be one of asp, bsp,",
    ),
    (
        ["run", "-n", "4", "-p", "ripples:group_size=1", "train.py"],
        "ripples: group_size is 1 workers; it must be 2 or more",
    ),
    (
        ["run", "-n", "4", "-p", "ripples:group_size=9", "train.py"],
        "ripples: group_size is 9, and there are 4 workers; it must be from 2 to the number of workers",
    ),
    (
        ["run", "-n", "5", "--scenario", "two-nodes.toml", "-p", "ripples:schedule=static", "train.py"],
        "ripples: schedule is static; every node must have as many workers as the others, and has: node-0 3, node-1 2",
    ),
    (["run", "missing.py"], "missing.py: No such file or directory; name the training script to run"),
    (["run", "full"], "full: Is a directory; name the training script to run"),
    (["run", "not_python.py"], "not_python.py is not Python: invalid syntax, line 1"),
    (["run", "data.bin"], "data.bin is not Python: source code string cannot contain null bytes"),
    (["run"], "the following arguments are required: SCRIPT; see paceline run --help"),
    (["run", "-p", "ssp,bound=3", "train.py"], 'unknown protocol "ssp,bound=3" (did you mean "ssp:bound=3"?); known'),
    (["run", "-p", "bsp,aps", "train.py"], "(each -p names one; commands that take several take -p bsp -p asp)"),
    (["rnu", "train.py"], 'unknown command "rnu" (did you mean "run"?); known: run, join,'),
    (["run", "--worker", "4", "train.py"], 'unrecognized arguments: --worker (did you mean "--workers"?); see'),
    (
        ["simulate", "-p", "bsp", "--scenario", "c.toml"],
        "unrecognized arguments: --scenario; the cluster is an argument, not a flag: paceline simulate CLUSTER.toml",
    ),
    (["run", "--workerz=2", "train.py"], 'unrecognized arguments: --workerz=2 (did you mean "--workers"?); see'),
    (["runn", "train.py"], "runn"),
    (["check", "run", ""], "unrecognized arguments: ; see paceline check --help"),
    (["--worker", "4"], "see paceline --help"),
    (["run", "--worker", "4", "train.py"], "; see paceline run --help"),
    (["run", "--bound", "3", "train.py"], "--bound (bound is a protocol's parameter: -p ssp:bound=3); see"),
    (["run", "-p", "ssp", "--bound=3", "train.py"], "(bound is a protocol's parameter: -p ssp:bound=3); see"),
    (["simulate", "--group-size", "3"], "(group_size is a protocol's parameter: -p ripples:group_size=3); see"),
    (["check", "--bound", "3", "run"], "unrecognized arguments: --bound"),
    (["train.py"], 'unknown command "train.py"; to train with that script: paceline run train.py'),
    (["data.bin", "-n", "2"], 'unknown command "data.bin"; to train with that script: paceline run data.bin'),
    (
        ["run", "-p", "asp", "-p", "bsp", "train.py"],
        "run takes one protocol, and was given -p asp -p bsp; paceline compare takes several",
    ),
    (["run", "--target", "accuracy", "train.py"], "or the shell takes the sign away: --target 'accuracy>=0.9'"),
    (["run", "--out", "run", "train.py"], "--out run holds a run already; name another folder, or remove this one"),
    (["run", "--out", "full", "train.py"], "--out full is not an empty folder; name another one"),
    (["run", "--out", "train.py", "train.py"], "--out train.py is not an empty folder; name another one"),
    (["run", "--scenario", "none.toml", "train.py"], "none.toml: there is no such file; give the path of a scenario"),
    (["run", "--scenario", "not.toml", "train.py"], "not.toml: line 1 is not valid TOML"),
    (["run", "--scenario", "unknown-key.toml", "train.py"], 'unknown-key.toml: cluster: unknown key "speeed"'),
    (
        ["run", "--scenario", "unknown-event-key.toml", "train.py"],
        'unknown-event-key.toml: event 1: unknown key "at_stepp" (did you mean "at_step"?)',
    ),
    (
        ["run", "-n", "2", "--scenario", "index.toml", "train.py"],
        "index.toml: worker table 1: index is 2; with 2 workers it must be from 0 to 1",
    ),
    (
        ["run", "-n", "2", "--scenario", "event-index.toml", "train.py"],
        "event-index.toml: event 1: worker is 7; with 2 workers it must be from 0 to 1",
    ),
    (
        ["run", "--scenario", "duration.toml", "train.py"],
        'duration.toml: cluster.compute is "400"; write a number and one of us, ms, s, m, h, in quotes',
    ),
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


# --- found by the script's own doing: the same, and the run's folder is gone again

IN_SCRIPT: dict[str, tuple[str, tuple[str, ...], str]] = {
    "an optimizer whose parameters are not the model's": (
        training(before="model = nn.Linear(4, 2)"),
        ("-n", "2"),
        "the optimizer's parameter 0 of group 0, of shape [2, 4], is not one of the model's; "
        "build the optimizer from model.parameters(), once the model has its final form",
    ),
    "a model without trainable parameters": (
        training(before="model.requires_grad_(False)"),
        ("-n", "2"),
        "the model has no trainable parameters; at least one must have requires_grad=True",
    ),
    "an optimizer that wraps another": (
        training(
            before="""
            class Lookahead(torch.optim.Optimizer):
                def __init__(self, inner):
                    super().__init__(model.parameters(), {})
                    self.inner = inner

            optimizer = Lookahead(optimizer)
            """
        ),
        ("-n", "2"),
        "the optimizer, of class Lookahead, wraps another one, and Paceline can't tell which of them has the "
        "parameters",
    ),
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
    "an optimizer that keeps the parameters in a list of its own": (
        training(before="optimizer.mine = list(model.parameters())"),
        ("-n", "2"),
        'the optimizer keeps parameters in its attribute "mine"; Paceline steps others in their place',
    ),
    "an optimizer whose state has other keys than parameters": (
        training(before="optimizer.state['count'] = 0"),
        ("-n", "2"),
        "the optimizer's state has keys that are no parameters; keep them in its param_groups",
    ),
    "a buffer over a parameter's memory": (
        training(before="model.register_buffer('shadow', model.weight.data)"),
        ("-n", "2"),
        'the buffer "shadow" shares the memory of the parameter "weight", which moves in prepare()',
    ),
    "a buffer whose elements share memory": (
        training(before="model.register_buffer('scale', torch.ones(1).expand(4))"),
        ("-n", "2"),
        'elements of the buffer "scale" share memory, as expand() leaves them; give it memory of its own by clone()',
    ),
    "a buffer that is sparse": (
        training(before="model.register_buffer('graph', torch.eye(4).to_sparse())"),
        ("-n", "2"),
        'the buffer "graph" is sparse_coo, not dense; replace it by its to_dense()',
    ),
    "a parameter that is sparse": (
        training(before="model.graph = nn.Parameter(torch.eye(4).to_sparse())"),
        ("-n", "2"),
        'the parameter "graph" is sparse_coo, not dense; replace it by its to_dense()',
    ),
    "a model that changes its type between prepare and the first step": (
        training("if step == 0: model.double(); x, y = x.double(), y.double()"),
        ("-n", "2"),
        'the parameter "weight" is torch.float64 [2, 4] now and was torch.float32 [2, 4] in prepare()',
    ),
    "an optimizer's state of a kind that can't be passed on": (
        training("if step == 0: optimizer.load_state_dict({**optimizer.state_dict(), 'state': {0: {'history': 1j}}})"),
        ("-n", "2"),
        'the optimizer\'s state has "history" in 0, a complex; only tensors, plain values, and lists',
    ),
    "no samples and no number of steps for a protocol that switches at a share of them": (
        "import torch, paceline\nmodel = torch.nn.Linear(1, 1)\n"
        "paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n",
        ("-n", "2", "-p", "sync-switch"),
        "sync-switch needs to know how much work there is, and the script has no loader whose samples could be",
    ),
    "a number of epochs that is none": (
        "import torch, paceline\nmodel = torch.nn.Linear(1, 1)\n"
        "paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), epochs=True)\n",
        ("-n", "1"),
        "prepare() got epochs=True; it must be a whole number, 1 or more",
    ),
    "a learning rate that is no number": (
        training(before="optimizer.param_groups[0]['lr'] = 'x'"),
        ("-n", "1"),
        "the optimizer's learning rate is 'x' in group 0; it must be a number",
    ),
    "prepare called twice": (
        training(before="paceline.prepare(model, optimizer, loader)"),
        ("-n", "1"),
        "prepare() is called twice, and a run trains one model with one optimizer: call it once, and go on with",
    ),
    "a layer with sparse gradients": (
        training(
            before="model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
        ),
        ("-n", "2"),
        'the layer "0" makes sparse gradients, which can\'t be pushed; build it with sparse=False',
    ),
    "a sparse gradient that no layer announced": (
        training("model.weight.grad = torch.zeros(2, 4).to_sparse(); optimizer.step()"),
        ("-n", "2"),
        'the gradient of "weight" is sparse; only dense gradients can be pushed: build its layer with sparse=False',
    ),
    "workers with different models": (
        training(before="model = nn.Linear(4, 2 + me)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"),
        ("-n", "2"),
        "worker 1 differs from worker 0: it has weight: float32[3, 4] in group 0, the other has "
        "weight: float32[2, 4] in group 0; every worker must build the same model and optimizer",
    ),
    "hosts with different files": (
        training(
            before="""
            os.makedirs(os.path.join(sys.path[0], "parts"), exist_ok=True)
            with open(os.path.join(sys.path[0], "parts", "layers.py"), "w") as file:
                file.write(f"here = {me}")  # worker 1 begins when worker 0 has come to prepare
            import parts.layers
            """
        ),
        ("--emulate-hosts", "2", "-n", "1"),
        "host node-1: parts/layers.py differs from the head's; copy the same files to all hosts",
    ),
    "hosts with different data": (
        training(
            before="""
            data = TensorDataset(*(tensor[me:] for tensor in data.tensors))
            loader = DataLoader(data, batch_size=4, shuffle=True)
            """
        ),
        ("--emulate-hosts", "2", "-n", "1"),
        "host node-1: its data has 63 samples, and the head's 64; copy the same data to all hosts",
    ),
    "too little memory": (
        training(
            before="""
            there = int(open("/proc/meminfo").read().split()[1]) * 1024  # MemTotal
            model = nn.Module()
            model.weight = nn.Parameter(torch.empty(there // 12))  # a third of it, of which no page is touched
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            """
        ),
        ("-n", "1"),
        "bytes of memory",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """Two at a time: most of what they take is the start of one process."""

    def go(name: str, number: int) -> Run:
        script, flags, _ = (IN_SCRIPT | FAILING)[name]
        folder = tmp_path_factory.mktemp(f"bad-{number}")
        traces = Traces(folder / "temporary")
        run = ended(start(script, *flags, tmp_path=folder, env=traces.environment))
        traces.assert_nothing_left()
        return run

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(go, name, number) for number, name in enumerate(IN_SCRIPT | FAILING)}


@pytest.mark.parametrize("name", IN_SCRIPT)
def test_what_a_script_asks_wrongly_is_one_line_and_2_and_leaves_nothing(name: str, runs: Any) -> None:
    run = runs[name].result()
    line = the_line(run.err)
    assert IN_SCRIPT[name][2] in line
    assert run.code == 2
    assert run.out == ""
    assert not run.folder.exists()
    if name == "too little memory":
        found = re.search(r" needs ([0-9,]+) bytes of memory .* and there are ([0-9,]+); ", line)
        assert found
        needed, there = (int(number.replace(",", "")) for number in found.groups())
        assert needed > there > 0
        assert "use fewer workers or a smaller model" in line


# --- runs that fail: 3

FAILING: dict[str, tuple[str, tuple[str, ...], str]] = {
    "a script that never calls prepare": (
        "print('no training here')",
        ("-n", "2"),
        "ended without calling paceline.prepare(); add the line "
        "model, optimizer, loader = paceline.prepare(model, optimizer, loader) before its loop",
    ),
    "a script of which one worker never calls prepare": (
        training(before="if me == 1: sys.exit()"),
        ("-n", "2", "-p", "bsp"),
        "ended without calling paceline.prepare()",
    ),
    "an evaluate that raises": (
        training(before="def evaluate(model): raise KeyError('labels')"),
        ("-n", "2"),
        "evaluate() raised, on version 2: KeyError: 'labels'",
    ),
    "an evaluate that exits": (
        training(before="def evaluate(model): sys.exit(0)"),
        ("-n", "2"),
        "evaluate() raised, on version 2: SystemExit: 0",
    ),
    "an evaluate whose keys aren't strings": (
        training(before="def evaluate(model): return {1: 0.5}"),
        ("-n", "2"),
        "evaluate() raised, on version 2: TypeError: evaluate() named a metric 1; a metric's name must be a string",
    ),
    "a limit that is reached before training": (
        training(),
        ("-n", "2", "--max-seconds", "0.001"),
        "--max-seconds was reached before training began",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_run_that_fails_ends_with_3_and_says_why_once(name: str, runs: Any) -> None:
    run = runs[name].result()
    assert run.code == 3, run.err
    assert run.summary["outcome"] == "failed"
    assert FAILING[name][2] in run.summary["error"]
    shown = " ".join((run.out + run.err).split())
    assert shown.count(FAILING[name][2]) == 1, run.out + run.err
    assert shown.count("Traceback") == (name in ("an evaluate that raises", "an evaluate that exits")), (
        run.out + run.err
    )
    assert "paceline/" not in shown.replace(str(run.folder.parent), "")


def test_more_workers_than_there_is_memory_for_are_refused_before_any_is_started() -> None:
    assert too_many(4, 4 * 35_000_000) == ""
    told = too_many(5, 4 * 35_000_000)
    assert told.startswith("5 workers take at least 175,000,000 bytes of memory")
    assert told.endswith("and 140,000,000 are available; ask for fewer with -n")
