"""What a script leaves to the end of its process is done there, in every worker, as the interpreter does it."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import pytest
import torch

from paceline.protocols import registry
from support.events import said
from support.launch import Launch
from support.runs import ended
from support.scripts import ENDLESS, training
from support.suites import each

LEFT = """
import atexit, gzip, logging.handlers, tempfile, threading, weakref
from concurrent.futures import ThreadPoolExecutor
os.makedirs(f"{{sys.argv[1]}}/{{me}}")
os.chdir(f"{{sys.argv[1]}}/{{me}}")
held = open("held", "w")
held.write("held")
cycle = [open("cycle", "w")]
cycle += [cycle, cycle[0].write("cycle")]
def writes():
    with open("generated", "w") as file:
        try:
            yield
        finally:
            file.write("at its end")
begun = writes()
next(begun)
packed = gzip.open("packed", "wt")
packed.write("packed")
temporary = tempfile.TemporaryDirectory(dir=".")
open(f"{{temporary.name}}/file", "w").write("in a temporary folder")
weakref.finalize(model, print, "finalized")
logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler("logged")))
logging.warning("logged")
def fails():
    raise ValueError("in an exit function")
def late():
    time.sleep(0.2)
    held.write(" to the end")
    print("the thread ends")
atexit.register(print, "registered first")
atexit.register(fails)
atexit.register(lambda: torch.save(model.state_dict(), "saved_by_exit_function"))
threading.Thread(target=late).start()
ThreadPoolExecutor().submit(late)
{end}
"""
PUTS_ITS_OWN_IN = "model.weight.data.fill_(7)"
"""For a script that evaluates: then versions are put into its model after its end."""
PRINTED = ["the thread ends", "the thread ends", "in an exit function", "registered first", "finalized"]
FILES = {
    "held": "held to the end to the end",
    "cycle": "cycle",
    "logged": "logged\n",
    "generated": "at its end",
}


def order(printed: str) -> list[str]:
    """Those of these words that were printed, in order."""
    return [word for line in printed.splitlines() for word in dict.fromkeys(PRINTED) if line.endswith(word)]


def assert_whole(folder: Path) -> None:
    """Everything that the script has left to its end was done."""
    assert {name: (folder / name).read_text() for name in FILES} == FILES
    with gzip.open(folder / "packed", "rt") as packed:
        assert packed.read() == "packed"
    assert {path.name for path in folder.iterdir()} == {*FILES, "packed", "saved_by_exit_function"}


@pytest.mark.parametrize(
    ("protocol", "end"),
    each(
        [
            *((protocol, "") for protocol in registry()),
            *(("bsp", end) for end in ("sys.exit(0)", "paceline.finish()", PUTS_ITS_OWN_IN)),
        ],
        default=[("all-reduce", ""), ("bsp", PUTS_ITS_OWN_IN)],
    ),
)
def test_files_threads_exit_functions_and_temporary_folders_are_seen_to_as_the_script_ends(
    protocol: str, end: str, launch: Launch
) -> None:
    before = "evaluate = lambda model: {'sum': model.weight.sum().item()}" if "fill_" in end else ""
    script = training(before=before, after=LEFT.format(end=end))
    run = launch.run(script, "-n", "2", "-p", protocol, "--saves", "all", args=(str(launch.tmp_path),)).completed()
    final = run.final()
    for worker in range(2):
        assert_whole(launch.tmp_path / str(worker))
        assert order(run.log(worker)) == PRINTED
        saved = torch.load(launch.tmp_path / str(worker) / "saved_by_exit_function", weights_only=True)
        if before:
            assert saved["weight"].unique().tolist() == [7.0]
        elif protocol in ("bsp", "all-reduce"):
            assert {name: saved[name].tolist() for name in final} == {n: v.tolist() for n, v in final.items()}


def test_so_it_is_after_an_exception_which_is_shown_first_by_the_script_s_own_hook(launch: Launch) -> None:
    hook = "sys.excepthook = lambda kind, error, frames: print('hooked', error, frames.tb_frame.f_code.co_name)"
    script = training(before=hook, after=LEFT.format(end="raise ValueError('at last')"))
    run = launch.run(
        script, "-n", "2", "-p", "asp", "--saves", "all", "--on-loss", "continue", args=(str(launch.tmp_path),)
    )
    assert run.code == 3
    for worker in range(2):
        assert_whole(launch.tmp_path / str(worker))
        assert order(run.log(worker)) == PRINTED
        assert run.log(worker).startswith("hooked at last <module>\n")


def test_so_it_is_after_ctrl_c(launch: Launch) -> None:
    script = training("if step == 3: tell('trains', me)", before=LEFT.format(end=""), after="", **ENDLESS)
    run = launch.signalled(signal.SIGINT, script, "-p", "bsp", "--saves", "all", args=(str(launch.tmp_path),))
    assert run.code == 130
    for worker in range(2):
        assert_whole(launch.tmp_path / str(worker))
        assert order(run.log(worker)) == PRINTED


THEIRS = "threads, exit functions or processes of the script still run"


@pytest.mark.parametrize("fails", each([False, True], long=[True]), ids=["at Ctrl-C", "after an exception"])
def test_an_exit_function_that_hangs_is_ended_and_files_are_whole(fails: bool, launch: Launch) -> None:
    hangs = """
        import atexit
        held = open(f"{sys.argv[1]}/held-{me}", "w")
        held.write("held")
        def hang():
            held.write(" to the end")
            tell("hangs", me)
            signal.pause()
        atexit.register(hang)
        assert sys.argv[2:] == [], "at last"
        """
    args = (str(launch.tmp_path), *["fail"] * fails)
    process = launch.start(training(after=hangs), "-n", "2", "-p", "asp", "--report-waits", "0.5", args=args)
    for worker in range(2):
        launch.events.wait_for("hangs", worker)
    if not fails:
        said(process, f"paceline: the run is over, and waits for workers 0, 1: {THEIRS}")
        process.send_signal(signal.SIGINT)
    run = ended(process)
    assert run.code == (3 if fails else 130)
    for worker in range(2):
        assert (launch.tmp_path / f"held-{worker}").read_text() == ("held to the end" if fails else "held")


def test_files_are_whole_once_the_script_has_ended_though_the_run_goes_on(launch: Launch) -> None:
    after = """
        held = open(f"{sys.argv[1]}/held-{me}", "w")
        held.write("held")
        if me == 1:
            first = f"{sys.argv[1]}/held-0"
            while not os.path.exists(first) or not os.path.getsize(first):
                time.sleep(0.01)
    """
    launch.run(training(after=after), "-n", "2", "-p", "asp", args=(str(launch.tmp_path),)).completed()


def test_what_the_launcher_has_registered_for_its_end_is_not_done_by_workers(launch: Launch) -> None:
    first = "import atexit, sys, tempfile; sys.kept = tempfile.TemporaryDirectory(); atexit.register(print, 'launcher')"
    after = """
        import atexit, weakref
        atexit.register(lambda: print(os.path.exists(sys.kept.name)))
        weakref.finalize(model, int)
    """
    run = launch.run(training(after=after), "-n", "2", "--tee", "all", first=first).completed()
    assert run.log(0) == run.log(1) == "True\n"
