"""`paceline run` as a user starts it: a process of its own, a script, flags, and what lies in its folder."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.records.ledger import connect
from paceline.records.snapshots import whole
from support import nursery
from support.dispositions import as_from_a_terminal

if TYPE_CHECKING:
    import pytest
    from torch import Tensor

Launcher = subprocess.Popen[str] | nursery.Process
"""A run's first process."""

_NUMBERS = count()


@dataclass
class Run:
    """A run that has ended."""

    code: int
    """Negative if a signal ended the launcher."""
    out: str
    err: str
    folder: Path
    """The run's folder; there is none if the input was bad."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    @cached_property
    def ledger(self) -> sqlite3.Connection:
        """The ledger, open for reading."""
        return connect(self.folder / "ledger.sqlite")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What the ledger answers."""
        return self.ledger.execute(query, values).fetchall()

    def final(self) -> dict[str, Tensor]:
        """`versions/final.safetensors`: the last version under the script's own names."""
        import safetensors.torch

        return safetensors.torch.load_file(self.folder / "versions" / "final.safetensors")

    def log(self, worker: int) -> str:
        """What that worker printed."""
        return (self.folder / f"worker-{worker}.log").read_text()

    def completed(self) -> Run:
        """This run, which must have ended well; else the test fails and shows what was printed."""
        assert self.code == 0, f"exit code {self.code}\n--- standard output\n{self.out}\n--- standard error\n{self.err}"
        return self

    def refused(self, said: str) -> Run:
        """This run, which must have been refused for what the user gave: this is said once, without a traceback."""
        assert self.code == 2, self.out + self.err
        assert "Traceback" not in self.out + self.err
        assert " ".join(self.err.split()).count(said) == 1, self.err
        return self


def run(
    script: str | Path,
    *flags: str,
    args: Sequence[str] = (),
    tmp_path: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    fresh: bool = False,
    first: str = "",
) -> Run:
    """`paceline run FLAGS SCRIPT ARGS`, in a session of its own, to its end; the folder is below `tmp_path`.

    `script` is a file, or a script's text, which is dedented and written to one. `env` is added to the
    environment. After `timeout` seconds the launcher is killed and the test fails with what was printed. `fresh` if it
    is to be a `python -m paceline` from its first instruction on; else it is forked where torch is imported already
    (see `support.nursery`). `first` is Python that a forked launcher executes before anything else: limits, for
    example, or what it is to lack.
    """
    started = start(script, *flags, args=args, tmp_path=tmp_path, env=env, fresh=fresh, first=first)
    return ended(started, timeout)


def start(
    script: str | Path,
    *flags: str,
    args: Sequence[str] = (),
    tmp_path: Path,
    env: Mapping[str, str] | None = None,
    fresh: bool = False,
    first: str = "",
) -> Launcher:
    """The same, not waited for: the launcher's process. Its `folder` attribute is the run's folder."""
    number = next(_NUMBERS)
    if isinstance(script, str):
        file = tmp_path / f"train_{number}.py"
        file.write_text(textwrap.dedent(script))
    else:
        file = script
    folder = tmp_path / f"run_{number}"
    quiet = [] if "--progress" in flags else ["--quiet"]  # else what is printed depends on how long it takes
    arguments = ["run", *quiet, "--out", str(folder), *flags, str(file), *args]
    return _started(arguments, folder, env, fresh=fresh, first=first)


def resume(
    run: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    fresh: bool = False,
    first: str = "",
    quiet: bool = True,
) -> Launcher:
    """`paceline run --resume RUN FLAGS`, not waited for."""
    return _started(["run", *["--quiet"] * quiet, "--resume", str(run), *flags], run, env, fresh=fresh, first=first)


def joining(
    address: str, *flags: str, env: Mapping[str, str] | None = None, fresh: bool = False, first: str = ""
) -> Launcher:
    """`paceline join ADDRESS FLAGS`, not waited for. It has no folder of a run."""
    return _started(["join", address, *flags], Path(), env, fresh=fresh, first=first)


def replayed(run: Path, *flags: str, name: str = "", fresh: bool = False, first: str = "") -> Run:
    """`paceline replay RUN FLAGS`, to its end, into a folder of that name beside it. `fresh`, `first`: see `run`."""
    folder = run.with_name(name or f"{run.name}-again")
    return ended(_started(["replay", str(run), "--out", str(folder), *flags], folder, None, fresh=fresh, first=first))


def _started(
    arguments: list[str], folder: Path, env: Mapping[str, str] | None, *, fresh: bool = False, first: str = ""
) -> Launcher:
    process: Launcher
    if fresh:
        assert not first
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )
    else:
        process = nursery.Process(arguments, env, first)
    process.folder = folder  # type: ignore[union-attr]
    return process


def ended(process: Launcher, timeout: float = 120) -> Run:
    """Wait for a started run's end."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # workers and store end with their launcher
        out, err = process.communicate()
        raise AssertionError(f"not over after {timeout} s\n--- standard output\n{out}\n--- error\n{err}") from None
    return Run(code=process.returncode, out=out, err=err, folder=process.folder)  # type: ignore[union-attr]


def killed_once_kept(process: Launcher, snapshots: int = 1) -> Run:
    """Kill a started run's launcher once so many snapshots are whole."""
    while len(list(whole(process.folder))) < snapshots:  # type: ignore[union-attr]
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    return ended(process)


def longer(request: pytest.FixtureRequest) -> bool:
    """Whether longer tests of this module are to be made, too: a fixture makes their runs only then."""
    return any(item.path == request.path and item.get_closest_marker("long") for item in request.session.items)


@contextmanager
def side_by_side(calls: Mapping[str, Callable[[], Run]]) -> Iterator[dict[str, Future[Run]]]:
    """Make these runs two at a time, in order: much of a short run uses one core."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = {name: pool.submit(call) for name, call in calls.items()}
        try:
            yield futures
        finally:
            for future in futures.values():
                future.cancel()
