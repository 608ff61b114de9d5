"""A host that takes part lies, or talks out of turn, beside an honest one: the run goes on, and its records are right.

The liar is a real host, with a link that says other things than its workers do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.net.token import Token, write
from support.events import said
from support.launch import Launch
from support.recorded import checked
from support.runs import ended
from support.scripts import training
from support.suites import each

LIES = """
import math
from msgspec import structs
from paceline.host.events import WorkerSaid
from paceline.ipc import messages
from paceline.coordinator.agent import _Agent

def report(self, event, real=_Agent._report):
    said = event.message if isinstance(event, WorkerSaid) else None
    done = isinstance(said, messages.worker.StepFinished)
    for one in LIE(event.worker, said) if done and said.step == 2 else (said,):
        real(self, event if one is said else WorkerSaid(event.worker, one))

_Agent._report = report
def LIE(worker, message):
    return SAYS
"""
OUT_OF_TURN = "it sent StepFinished out of turn"
SAYS = {
    "twice": ("(message, message)", OUT_OF_TURN),
    "another step": ("(structs.replace(message, step=9),)", OUT_OF_TURN),
    "batches that it was not leased": ("(structs.replace(message, batches=[(0, 0), (1 << 62, 1)]),)", None),
    "no number": (
        "(structs.replace(message, compute=math.nan),)",
        "has sent what can't be read: Expected `float` >= 0",
    ),
    "a name that no table has": (
        "(messages.worker.ScalarsLogged(2, 0, {'\\x1b[2J': 1.0}),)",
        "which is no name",
    ),
    "words and times beyond measure": (
        "(*(messages.worker.Remarked('\\x1b[2J' + 'x' * 9000) for _ in range(100)),"
        "messages.worker.ScalarsLogged(2, 0, {'x': math.inf, 'y': math.nan}),"
        "structs.replace(message, compute=1e8, push=0.0, other=1e9, waited=1e9, began=-1e9))",
        None,
    ),
}
"""By what the liar says in place of a step's end: that, and why it is lost, if it is."""


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both hosts have."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(tmp_path / "token"))


@pytest.mark.parametrize(
    ("protocol", "what"),
    each(
        [(protocol, what) for protocol in ("asp", "bsp", "all-reduce") for what in SAYS],
        default=[("bsp", "words and times beyond measure")],
    ),
)
def test_a_run_goes_on_beside_a_host_that_lies_and_all_its_readers_read_it(
    protocol: str, what: str, launch: Launch
) -> None:
    says, why = SAYS[what]
    flags = "--trusted-network", "-n", "2"
    listens = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "a", "--threads", "1", "--on-loss", "continue"
    head = launch.start(training("time.sleep(0.02)"), *listens, *flags, "-p", protocol, "--restart", "0")
    found = re.search(r"paceline join (\S+) -n", said(head, "paceline join .*\n"))
    assert found is not None
    other = launch.start_joining(found[1], "--name", "b", *flags, first=LIES.replace("SAYS", says))
    run = ended(head).completed()
    ended(other)
    assert "\x1b" not in run.err
    assert "Traceback" not in run.err
    lost = [line for line in run.err.splitlines() if "host b is lost: " in line]
    assert len(lost) == (why is not None), run.err
    assert why is None or why in lost[0]
    if what.startswith("words"):
        assert "more lines of worker 2 are left out" in run.err
    assert (result := checked(run.folder)).ok, result.wrong
    for command in ("explain", "check", "report"):
        read = [sys.executable, "-m", "paceline", command, str(run.folder), "--json"]
        told = subprocess.run(read, capture_output=True, text=True, check=False, cwd=launch.tmp_path)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout)
