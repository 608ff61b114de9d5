"""Real processes: how workers and what they start die, how runs end, and that nothing is left of either."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from subprocess import PIPE
from textwrap import indent

import pytest

import paceline
from paceline.ipc import processes
from paceline.ipc.processes import NoProcess, adopt_orphans, children, end_adopted, end_groups, fork_child, fork_orphan
from support.dispositions import as_from_a_terminal
from support.events import LONG
from support.launch import Launch
from support.leftovers import Traces
from support.runs import Run, ended
from support.scripts import ENDLESS, training

OURS = f"{Path(paceline.__file__).parent}{os.sep}"
"""Where our own frames come from."""


def told_of(run: Run, beginning: str) -> str:
    """The one line that begins so, and what is told of that worker below it."""
    _, rest = run.err.split(f"paceline: {beginning}")
    return rest.split("\npaceline: worker ")[0]


def reasons(run: Run) -> list[str]:
    return [row["left"]["reason"] for row in run.summary["per_worker"]]


# --- what the tests below rest upon


def test_a_process_that_is_left_behind_is_found_and_ended(tmp_path: Path) -> None:
    traces = Traces(tmp_path / "temporary")
    with subprocess.Popen(["cat", "-"], env=traces.environment, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"here\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"here\n"  # while a program is being loaded, /proc shows no environment
        with pytest.raises(AssertionError, match=rf"process {process.pid}: .*cat -"):
            traces.assert_nothing_left(within=0.05)
        assert process.wait(LONG) == -signal.SIGKILL
    traces.assert_nothing_left()


def test_a_shared_memory_segment_and_a_socket_that_are_left_behind_are_found(tmp_path: Path) -> None:
    traces = Traces(tmp_path / "t")
    segment = SharedMemory(create=True, size=10)
    segment.close()  # still there, mapped by nobody
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "t" / "s"))
    assert traces.left() == [f"shared memory /dev/shm/{segment.name}", f"socket {tmp_path / 't' / 's'}"]
    segment.unlink()
    os.unlink(tmp_path / "t" / "s")
    traces.assert_nothing_left()


# --- workers that die


DEATHS = """
class Faulty(TensorDataset):
    fetched = 0
    def __getitem__(self, index):
        self.fetched += 1
        if self.fetched > 5 * 4:
            raise ValueError("this sample is bad")
        return super().__getitem__(index)

if me == 1:
    loader = DataLoader(Faulty(*data.tensors), batch_size=4, shuffle=True)
"""
EXIT = """
if step == 5 and me == 2:
    print("no more")
    sys.exit(1)
"""


def test_workers_that_die_are_named_with_their_end_and_last_words_and_the_rest_finish(launch: Launch) -> None:
    """Of four, by SIGKILL (the one that forked the store), an exception, an exit code: the fourth ends the work."""
    kill = launch.tmp_path / "kill.toml"
    kill.write_text("[[event]]\nworker = 0\nat_step = 5\nkill = true\n")
    flags = ("-n", "4", "-p", "bsp", "--shards", "static", "--tee", "none", "--on-loss", "continue")
    script = training(EXIT, before=DEATHS, after="paceline.finish(); print('finished')")
    run = launch.run(script, *flags, "--scenario", str(kill)).completed()
    told_of(run, "worker 0 died (killed by SIGKILL) in step 5")
    traceback = told_of(run, "worker 1 died (exit code 1) in step 5")
    assert "in __getitem__" in traceback
    assert "ValueError: this sample is bad" in traceback
    assert run.log(1).count("Traceback") == 1
    assert OURS not in run.log(1), "our frames, between the script's loop and its data, are nobody's business"
    assert "no more" in told_of(run, "worker 2 died (exit code 1) in step 5")
    assert (run.summary["outcome"], run.summary["error"]) == ("completed", None)
    assert "\nbsp · 1 of 4 workers · " in run.out
    assert reasons(run) == ["died", "died", "died", "finished"]
    ((deaths,),) = run.rows("SELECT value FROM run WHERE key = 'deaths'")
    assert json.loads(deaths) == {"0": "killed by SIGKILL", "1": "exit code 1", "2": "exit code 1"}
    assert [row["steps"] for row in run.summary["per_worker"]][:3] == [5, 5, 5]
    assert run.summary["samples"] + run.summary["samples_missed"] == 2 * 64
    times = "SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample"
    assert run.rows(times) == [(1,)], "a sample was trained twice"
    assert run.log(3) == "finished\n"
    assert run.final().keys() == {"weight", "bias"}


def test_when_all_die_of_one_mistake_the_run_fails_and_shows_it_once_and_without_our_frames(launch: Launch) -> None:
    script = training("if step == 2: model(x.double())")
    run = launch.run(script, "-n", "3", "-p", "asp", "--shards", "static", "--on-loss", "continue")
    assert run.code == 3
    assert run.summary["outcome"] == "failed"
    assert run.summary["error"] == "all workers died"
    assert reasons(run) == ["died", "died", "died"]
    everything = run.out + run.err
    assert everything.count("Traceback (most recent call last)") == 1, everything
    assert everything.count("if step == 2: model(x.double())") == 1
    frames = [line.split('"')[1] for line in everything.splitlines() if line.startswith('  File "')]
    assert Path(frames[0]).parent == launch.tmp_path, "the script's own frame comes first"
    assert not [frame for frame in frames if frame.startswith(OURS) or "runpy" in frame], frames
    for worker in range(3):
        told_of(run, f"worker {worker} died (exit code 1)")


# --- Ctrl-C, and the launcher's end


def interrupted_at_random(seed: int, launch: Launch) -> None:
    """Half of the moments are counted from the launcher's start, half from the first step."""
    chance = random.Random(seed)
    protocol, workers = chance.choice(["bsp", "asp", "ssp"]), chance.choice([1, 2, 4])
    script = training("if step == 0: tell('trains', me)", **ENDLESS)
    process = launch.start(script, "-n", str(workers), "-p", protocol, fresh=not seed % 2)
    if seed % 2:
        launch.events.wait_for("trains")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(chance.uniform(0.0, 0.5) if seed % 2 else chance.uniform(0.5, 4.0))
    trained = launch.events.so_far("trains")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    run = ended(process)
    if not trained and run.code == -signal.SIGINT:
        assert not run.folder.exists()  # the machine is so busy that not a line of ours had run yet
        return
    assert run.code == 130, run.err
    assert "Traceback" not in run.out + run.err
    if trained:
        assert run.summary["outcome"] == "interrupted"
        assert run.summary["error"] is None
        assert set(reasons(run)) == {"stopped"}
        assert len(run.summary["final_parameters_sha256"]) == 64
        assert run.final().keys() == {"weight", "bias"}
    launch.assert_nothing_left()


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 55), marks=pytest.mark.long)], ids=["3", "52"])
def test_ctrl_c_at_any_moment_ends_the_run_cleanly(launches: Callable[[], Launch], seeds: range) -> None:
    with ThreadPoolExecutor(2) as pool:
        tries = {seed: pool.submit(interrupted_at_random, seed, launches()) for seed in seeds}
    failed = {seed: error for seed, done in tries.items() if (error := done.exception())}
    assert not failed, f"{len(failed)} of {len(tries)}"


# --- limits


# --- what is printed, and what a script sees


SEEN = """
import json, sys
json.dump([sys.argv, __name__, __file__, sys.path[0], "RANK" in __import__("os").environ,
           "WORLD_SIZE" in __import__("os").environ, sys.stdin.read()], open(f"seen-{sys.argv[1]}", "w"))
"""


def test_a_script_sees_the_same_as_when_it_runs_alone(launch: Launch, tmp_path: Path) -> None:
    """argv, __name__, __file__, its own folder first on the path, nothing on standard input; no RANK, no folder."""
    (tmp_path / "scripts").mkdir()
    script = training(
        before=SEEN + "import neighbour",
        after="paceline.log(loss=loss.item()); paceline.finish(); print(f'{paceline.worker()}/{paceline.workers()}')",
    )
    (tmp_path / "scripts" / "train.py").write_text(script)
    (tmp_path / "scripts" / "neighbour.py").write_text("")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}

    def call(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments, "--flag", "-n"],
            cwd=tmp_path,
            env=environment | launch.events.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=True,
        ).stdout

    assert call("scripts/train.py", "alone") == "0/1\n"
    assert {path.name for path in tmp_path.iterdir()} == {"scripts", "seen-alone", "events"}
    printed = call("-m", "paceline", "run", "-n", "2", "--tee", "all", "--out", "out", "scripts/train.py", "together")
    assert "[worker 0] 0/2\n" in printed
    assert "[worker 1] 1/2\n" in printed
    alone = json.loads((tmp_path / "seen-alone").read_text())
    together = json.loads((tmp_path / "seen-together").read_text().replace("together", "alone"))
    assert alone == together
    assert alone[0] == ["scripts/train.py", "alone", "--flag", "-n"]


def test_a_script_may_prepare_and_train_in_a_thread_of_its_own(launch: Launch) -> None:
    ends = "states = model.state_dict(), optimizer.state_dict()\npaceline.finish(); print('trained, of', *states[0])"
    thread = "\nimport threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    script = f"def train():\n{indent(training(after=ends), '    ')}{thread}"
    run = launch.run(script, "-n", "2", "-p", "bsp", "--tee", "all").completed()
    assert run.out.count("trained, of weight bias\n") == 2, run.out
    assert run.summary["samples"] == 2 * 64


# --- what processes of a run start: how each ends, whom it takes along, who can reach it


SHARED = """
import multiprocessing, os, tempfile
from multiprocessing import connection
from paceline.ipc.processes import share_without_files

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
if step == 1 and me == 0:
    child = os.fork()
    if not child:
        sys.exit(3)
    print("forked, ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
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
    """A fork; a program in its own session; an exit code that is none; a thread that never ends; a thread's fork."""
    script = training(ENDS)
    run = launch.run(script, "-n", "4", "-p", "asp", "--shards", "static", "--on-loss", "continue").completed()
    assert "paceline: worker 1 died (exit code 1) in step 2; the others go on" in run.err
    assert "paceline: worker 2 died (exit code 1) in step 2; the others go on" in run.err
    assert run.log(2).count("ValueError: with a thread that waits for ever") == 1
    assert run.log(0) == "forked, ended with 3\n"
    assert run.log(3) == "forked by a thread, ended with 0\n"
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died", "died", "finished"]


def test_the_program_that_removes_torch_s_shared_files_is_given_the_time_for_it(tmp_path: Path) -> None:
    """As `torch.multiprocessing.set_sharing_strategy("file_system")` starts it: it ends when those it serves have."""
    manager, shared = tmp_path / "torch_shm_manager", tmp_path / "shared"
    manager.write_text(f"#!/bin/sh\necho begun\nread nothing\nsleep 0.1\nrm {shared}\n")
    manager.chmod(0o755)
    shared.touch()
    before = children()
    with subprocess.Popen([manager], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as tidier:
        assert tidier.stdin is not None
        assert tidier.stdout is not None
        assert tidier.stdout.readline() == b"begun\n"
        served = subprocess.Popen(["sleep", "1000"], stdout=tidier.stdin)
        tidier.stdin.close()
        end_adopted(before)
        assert children() == before
        served.wait()
    assert not shared.exists()


def test_what_python_tracks_for_spawned_processes_is_removed_when_their_group_is_killed() -> None:
    """As loaders with `multiprocessing_context="spawn"` need it: a tracker in their group removes their semaphores."""
    script = """
        import multiprocessing.shared_memory, subprocess, sys, time
        shared = multiprocessing.shared_memory.SharedMemory(create=True, size=8)
        subprocess.Popen(["sleep", "1000"])
        print(shared.name, flush=True)
        time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    before = children()
    adopt_orphans()
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as leader:
            assert leader.stdout is not None
            shared = Path("/dev/shm", leader.stdout.readline().decode().strip())
            assert shared.exists()
            end_groups({leader.pid})
            leader.stdout.read()  # to its end: all that had it open, the tracker and `sleep` too, have ended
        assert not shared.exists()
    finally:
        end_adopted(before)
        adopt_orphans(False)


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


IMPORTING = """
import os, signal, sys
class Signals:  # as early as anything of ours is imported that comes after the program's first lines
    def find_spec(self, name, path=None, target=None):
        if name == "paceline.cli.main":
            os.kill(os.getpid(), int(sys.argv[1]))
sys.meta_path.insert(0, Signals())
from paceline.__main__ import command
command()
"""


@pytest.mark.parametrize(
    ("number", "ignored", "code"),
    [
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 130),
        (signal.SIGHUP, False, 130),
        (signal.SIGINT, True, 130),  # as a shell script's `&` does it
        (signal.SIGHUP, True, 2),  # as `nohup` does it, and the number is no command
    ],
)
def test_a_signal_in_the_first_moments_ends_with_130_and_no_traceback_unless_it_is_a_sighup_that_was_ignored(
    number: signal.Signals, ignored: bool, code: int
) -> None:
    def begins() -> None:
        as_from_a_terminal()
        if ignored:
            signal.signal(number, signal.SIG_IGN)

    arguments = [sys.executable, "-c", IMPORTING, str(int(number))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, preexec_fn=begins)
    assert done.returncode == code
    if code == 130:
        assert (done.stdout, done.stderr) == ("", "")


def test_what_the_store_had_not_written_whole_is_taken_away_and_all_files_have_one_mode(launch: Launch) -> None:
    script = training(
        """
        if step == 3:
            for name in (".tmpX1y2", "00000099.unfinished"):  # as safetensors and the store leave them when killed
                open(os.path.join(sys.argv[1], "versions", name), "w").close()
        """
    )
    folder = launch.tmp_path / "out"
    umask = "import os; os.umask(0o002)"
    launch.run(script, "-n", "2", "--out", str(folder), args=(str(folder),), first=umask).completed()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {f"{path.stat().st_mode & 0o777:o}" for path in files} == {"664"}
    assert {path.suffix for path in (folder / "versions").iterdir()} == {".safetensors"}


def test_a_run_whose_folder_is_removed_meanwhile_fails_in_one_line(launch: Launch) -> None:
    script = training(
        """
        if step == 3 and me == 0:
            os.rename(sys.argv[1], sys.argv[1] + "-away")  # at once: files come and go while rmtree works
        """
    )
    folder = launch.tmp_path / "gone"
    run = launch.run(script, "-n", "2", "--out", str(folder), args=(str(folder),))
    assert run.code == 3
    assert "Traceback" not in run.out + run.err
    assert f"{folder}: the summary can't be written: No such file or directory" in " ".join((run.out + run.err).split())
    assert "the recorded versions" not in run.out + run.err


def test_a_ledger_that_the_disk_has_no_room_for_fails_the_run_and_the_summary_says_so(launch: Launch) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400 * 1024, 400 * 1024))"
    run = launch.run(training(epochs=10, samples=400), "-n", "1", "--record", "0", first=limit)
    assert run.code == 3
    assert "1000 steps" in run.out
    assert "Traceback" not in run.err
    assert run.summary["outcome"] == "failed"
    assert "the ledger cannot be written" in run.summary["error"]


# --- a machine that has no process to give, which is not its user's fault

FULL = "no further process can be started: Resource temporarily unavailable; "


def failing(real: Callable[[], int], after: int) -> Callable[[], int]:
    """A fork that fails when it was called so often, in this process or those that it forks."""
    calls = [0]

    def fork() -> int:
        calls[0] += 1
        if calls[0] > after:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real()

    return fork


@pytest.mark.parametrize("after", [0, 1])
def test_an_orphan_that_cannot_be_forked_is_told_and_leaves_nothing(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this process's fork fails, or that of the process in between."""
    before, children = set(os.listdir("/proc/self/fd")), set(processes.children())
    monkeypatch.setattr(os, "fork", failing(os.fork, after))
    with pytest.raises(NoProcess, match=f"^{FULL}[0-9,]+ bytes of memory are available"):
        fork_orphan(lambda: 0, os.getpid())
    assert not processes._orphaning
    assert set(os.listdir("/proc/self/fd")) <= before
    assert set(processes.children()) <= children


def test_a_child_that_cannot_be_forked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", failing(os.fork, 0))
    with pytest.raises(NoProcess, match=f"^{FULL}"):
        fork_child(lambda: 0)


FORKS_SO_OFTEN = """
import errno, os
real, calls = os.fork, []
def fork():
    calls.append(1)
    if len(calls) > {forks}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real()
os.fork = fork
"""


@pytest.mark.parametrize(("forks", "said"), [(4, f"workers 0, 1, 2, 3 can't be started: {FULL}"), (0, FULL)])
def test_what_a_launcher_can_not_fork_fails_the_run_with_3_in_one_line_and_leaves_nothing(
    forks: int, said: str, launch: Launch
) -> None:
    """A process can fork so often, and what it forks as often less than it has itself.

    The zygote is the first fork, the process in between the second. Two of the workers are there for a moment.
    """
    ended = launch.run(training(), "-n", "4", first=FORKS_SO_OFTEN.format(forks=forks))
    assert ended.code == 3
    assert "Traceback" not in ended.out + ended.err
    if forks:
        assert ended.summary["outcome"] == "failed"
        assert ended.summary["error"].startswith(said)
    else:
        assert ended.err.startswith(f"paceline: {said}")
