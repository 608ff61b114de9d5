"""Processes of a run and what they start: how each ends, whom it takes along, who can reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.launch import Launch
from support.scripts import training

SHARED = """
import multiprocessing, os, tempfile
from multiprocessing import connection
from paceline.runtime.processes import share_without_files

share_without_files()
multiprocessing.current_process().authkey = b"key"
listener = connection.Listener(authkey=b"key")
print(repr(listener.address))
print(os.listdir(tempfile.gettempdir()))
own = os.fork()
if not own:
    connection.Client(listener.address, authkey=b"key").send("hello")
    os._exit(0)
print(listener.accept().recv())
os.waitpid(own, 0)
stranger = os.fork()
if not stranger:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    else:  # the kernel says no as well to one who may not look into the other
        os._exit(0)
    try:
        connection.Client(listener.address, authkey=b"key")
    except PermissionError:
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]))
listener.close()
"""


def test_what_loader_processes_listen_on_is_for_their_own_user_and_no_file(tmp_path: Path) -> None:
    """A name without a file is open to everybody; a file stays when its process is killed."""
    temporary = tmp_path / ("t" * 100)  # longer than a socket's path may be
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SHARED],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    named, files, heard, stranger = done.stdout.splitlines()
    assert named.startswith("'/proc/"), f"open to every user: {named}"
    assert (files, heard, stranger) == ("[]", "hello", "0")


ENDS = """
if step == 2 and me == 0:  # in a session of its own, which no process group's end reaches
    import subprocess
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
if step == 2 and me == 1:
    sys.exit(2**40)
if step == 2 and me == 2:
    import threading
    threading.Thread(target=threading.Event().wait).start()
    raise ValueError("with a thread that waits for ever")
if step == 2 and me == 3:
    import multiprocessing, threading
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    forked = context.Process(target=go_on.wait)
    thread = threading.Thread(target=forked.start)
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass
    go_on.set()
    forked.join()
    print("forked by a thread, ended with", forked.exitcode)
"""


def test_a_run_ends_whatever_its_scripts_start_and_however_they_exit(launch: Launch) -> None:
    """A program in its own session; an exit code that is none; a thread that never ends; a fork by one that does."""
    script = training(ENDS)
    run = launch.run(script, "-n", "4", "-p", "asp", "--shards", "static", "--on-loss", "continue").completed()
    assert "paceline: worker 1 died (exit code 1) in step 2; the others go on" in run.err
    assert "paceline: worker 2 died (exit code 1) in step 2; the others go on" in run.err
    assert run.log(2).count("ValueError: with a thread that waits for ever") == 1
    assert run.log(3) == "forked by a thread, ended with 0\n"
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died", "died", "finished"]


def test_a_process_that_a_thread_has_forked_ends_with_its_parent_too(launch: Launch) -> None:
    script = training(
        """
        if step == 2:
            import multiprocessing, threading
            process = multiprocessing.get_context("fork").Process(target=signal.pause)
            thread = threading.Thread(target=process.start)
            thread.start()
            thread.join()
            tell("forked", process.pid)
            signal.pause()
        """
    )
    process = launch.start(script, "-n", "1")
    launch.events.wait_for("forked")
    process.kill()
    process.wait(60)
    launch.assert_nothing_left()
    process.communicate()
