"""A function on its way to the workers: what goes along, and which variable is named if it can't."""

from __future__ import annotations

import functools
import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.notebook.function import call
from paceline.notebook.sending import SentFunction
from paceline.records.kept import kept_script

CELL = """
import functools, threading
lock = threading.Lock()
settings = {"log": open("/dev/null", "w"), "rate": 0.1}
told = []

def helper():
    with lock:
        pass

class Trainer:
    def __init__(self):
        self.lock = lock
    def train(self):
        pass

class Net:
    def forward(self):
        return helper()

def uses_helper(): helper()
def uses_dict(): settings["log"].write("x")
def uses_class(): Net()
def uses_attribute(trainer=Trainer()): pass
def takes(what): pass
def recursive(): recursive(); helper()
def outer():
    secret = threading.Lock()
    def inner(): return secret
    return inner
def fit(number, *, word="a"):
    told.append((number, word, rate()))
    return None
def rate(): return settings_of_old["rate"]
settings_of_old = {"rate": 0.5}
def fails():
    raise ValueError("in a cell")
async def later(): pass
def each(): yield 1
"""


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    """The names of a notebook, whose cell is in no file; as IPython registers it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<cell 1>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell 1>")
    exec(compile(CELL, "<cell 1>", "exec"), names)
    yield names
    names["settings"]["log"].close()


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        ("uses_helper", (), 'the variable "lock" of helper is a _thread.lock'),
        ("uses_dict", (), """its variable "settings['log']" is a _io.TextIOWrapper"""),
        ("uses_class", (), 'the variable "lock" of helper is a _thread.lock'),
        ("uses_attribute", (), 'its variable "trainer.lock" is a _thread.lock'),
        ("recursive", (), 'the variable "lock" of helper is a _thread.lock'),
        ("takes", (threading.Lock(),), 'its argument "args[0]" is a _thread.lock'),
        ("takes", ([1, threading.Lock()],), 'its argument "args[0][1]" is a _thread.lock'),
    ],
)
def test_a_function_that_cannot_be_sent_names_the_variable(
    function: str, args: tuple[Any, ...], named: str, cell: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        SentFunction(cell[function], args, {})
    assert str(refused.value).startswith(f"the function {function} can't be sent to the workers: {named} (")
    assert "\n" not in str(refused.value)


def test_closures_partials_methods_and_objects_name_theirs_too(cell: dict[str, Any]) -> None:
    for function, named in (
        (cell["outer"](), 'function inner can\'t be sent to the workers: its variable "secret" is a _thread.lock'),
        (functools.partial(cell["takes"], cell["lock"]), 'takes can\'t be sent to the workers: its variable "args[0]"'),
        (cell["Trainer"]().train, 'Trainer.train can\'t be sent to the workers: its variable "self.lock"'),
    ):
        with pytest.raises(ConfigError) as refused:
            SentFunction(function, (), {})
        assert named in str(refused.value)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "why"),
    [
        ("takes", (), {}, r"takes\(what\) can't be called: missing a required argument: 'what'"),
        ("takes", (1,), {"rate": 2}, "got an unexpected keyword argument 'rate'"),
        ("later", (), {}, "the function later only makes a coroutine or a generator"),
        ("each", (), {}, "the function each only makes a coroutine or a generator"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused_before_any_process_starts(
    function: str, args: tuple[Any, ...], kwargs: dict[str, Any], why: str, cell: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=why):
        SentFunction(cell[function], args, kwargs)


def in_worker(script: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the kept script as a worker does; returns its `__main__`."""
    main = ModuleType("__main__")
    main.__dict__["__file__"] = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "path", sys.path[:1])
    exec(compile(script.read_text(), str(script), "exec"), main.__dict__)
    return main


def test_the_function_is_called_with_its_arguments_and_variables_and_main_has_its_names(
    cell: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.path)
    script = SentFunction(cell["fit"], (3,), {"word": "b"}).keep_in(tmp_path)
    main = in_worker(script, monkeypatch)
    assert main.told == [(3, "b", 0.5)]
    assert cell["told"] == []
    assert set(sys.path) >= {place for place in before if place.startswith("/")}
    assert "# It was called as fit(3, word='b').\n#\n# def fit(number" in script.read_text()


def test_a_traceback_shows_the_lines_of_a_cell(
    cell: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SentFunction(cell["fails"], (), {}).keep_in(tmp_path)
    del linecache.cache["<cell 1>"]
    with pytest.raises(ValueError, match="in a cell") as failed:
        in_worker(script, monkeypatch)
    assert 'raise ValueError("in a cell")' in "".join(traceback.format_exception(failed.value))


def test_a_module_that_workers_cannot_import_is_sent_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = ModuleType("plugin")
    exec("def say(): print('sent along')", plugin.__dict__)
    monkeypatch.setitem(sys.modules, "plugin", plugin)
    script = SentFunction(plugin.say, (), {}).keep_in(tmp_path)
    monkeypatch.delitem(sys.modules, "plugin")
    in_worker(script, monkeypatch)
    assert capsys.readouterr().out == "sent along\n"


def test_the_runs_of_a_comparison_have_its_function(tmp_path: Path) -> None:
    run = tmp_path / "both" / "bsp-seed0"
    run.mkdir(parents=True)
    assert kept_script(run) is None
    script = SentFunction(sorted, ([],), {}).keep_in(run.parent)
    assert kept_script(run) == kept_script(run.parent) == script
    (run.parent / "function.pkl").unlink()
    assert kept_script(run) is None


def changed(folder: Path) -> None:
    (folder / "function.pkl").write_bytes(b"other")


def gone(folder: Path) -> None:
    (folder / "function.pkl").unlink()


def older(folder: Path) -> None:
    script = folder / "function.py"
    script.write_text(script.read_text().replace(f'python="{sys.version_info[0]}.', 'python="2.'))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed, "function.pkl has changed since the run was made"),
        (gone, "function.pkl: No such file or directory"),
        (older, "the function was sent by Python 2"),
    ],
)
def test_a_kept_function_that_cannot_be_used_is_refused_in_one_line(
    change: Callable[[Path], None], why: str, cell: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SentFunction(cell["rate"], (), {}).keep_in(tmp_path)
    change(tmp_path)
    with pytest.raises(ConfigError, match=why) as refused:
        in_worker(script, monkeypatch)
    assert "\n" not in str(refused.value)


def test_what_a_worker_cannot_load_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def train(): pass")
    with monkeypatch.context() as there:
        there.syspath_prepend(tmp_path)
        import mine  # type: ignore[import-not-found]

        script = SentFunction(mine.train, (), {}).keep_in(tmp_path)
    (tmp_path / "mine.py").unlink()
    monkeypatch.delitem(sys.modules, "mine")
    with pytest.raises(ConfigError, match="can't be loaded in a worker: ModuleNotFoundError: No module named 'mine'"):
        in_worker(script, monkeypatch)


def test_call_takes_no_other_file_than_the_one_beside_its_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        call(str(tmp_path / "function.py"), sha256="", python=".".join(map(str, sys.version_info[:2])))
