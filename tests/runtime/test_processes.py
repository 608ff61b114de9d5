"""Real processes: how workers die, how runs end, and that nothing is left of either."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from subprocess import PIPE
from textwrap import indent

import pytest

import paceline
from support.events import LONG, await_stop, said
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


# --- workers that do not answer


def test_a_stopped_worker_is_reported_with_its_name_and_since_when_and_the_run_completes_when_it_goes_on(
    launch: Launch,
) -> None:
    script = training("if me == 1 and step == 3: tell('stops', os.getpid()); os.kill(os.getpid(), signal.SIGSTOP)")
    process = launch.start(script, "-n", "3", "-p", "bsp", "--report-waits", "0.5")
    stopped = int(launch.events.wait_for("stops")[1])
    text = said(process, r"worker 0 has waited .*\n(.*\n)*.*worker 2 has waited .*\n")
    for worker in (0, 2):
        line = next(line for line in text.splitlines() if line.startswith(f"paceline: worker {worker} has waited for"))
        assert re.search(r"waited for \d+ s: .*; worker 1 computes step 3, last heard of \d+ s ago$", line), line
        assert line.count("computes") == 1, "only who is awaited is named"
    await_stop(stopped)
    os.kill(stopped, signal.SIGCONT)
    run = ended(process).completed()
    assert reasons(run) == ["finished"] * 3
    assert run.summary["samples"] == 2 * 64


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


def test_max_seconds_ends_the_run_then(launch: Launch) -> None:
    run = launch.run(training(**ENDLESS), "-n", "2", "-p", "asp", "--max-seconds", "3").completed()
    assert run.summary["outcome"] == "completed"
    assert run.summary["steps"] > 0
    assert reasons(run) == ["stopped", "stopped"]
    assert "paceline: --max-seconds is reached: ending the run" in run.err
    assert "has not ended its script in time" not in run.err


# --- what is printed, and what a script sees


def test_finish_waits_for_all_and_gives_every_worker_the_final_parameters(launch: Launch) -> None:
    """They differ before it; after it they are those of `versions/final.safetensors`, as the summary hashes them."""
    script = training(
        before="import hashlib",
        after="""
        def digest():
            return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
        tell("before", me, digest(), os.getpid())
        if me == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        paceline.finish()
        tell("after", me, digest(), hashlib.sha256(model.state_dict()["weight"].numpy().tobytes()).hexdigest())
        paceline.finish()  # twice is no harm
        """,
    )
    process = launch.start(script, "-n", "3", "-p", "asp", "--tee", "all")
    *_, last = [int(launch.events.wait_for("before", worker)[3]) for worker in range(3)]
    await_stop(last)
    assert not any(launch.events.so_far("after", worker) for worker in range(3))
    os.kill(last, signal.SIGCONT)
    run = ended(process).completed()
    final = run.final()
    expected = hashlib.sha256(final["weight"].numpy().tobytes() + final["bias"].numpy().tobytes()).hexdigest()
    weight = hashlib.sha256(final["weight"].numpy().tobytes()).hexdigest()
    assert run.summary["final_parameters_sha256"] == expected
    for worker in range(3):
        assert launch.events.wait_for("after", worker)[2:] == [expected, weight]
    assert [line for line in run.err.splitlines() if "Traceback" in line] == []
    assert {launch.events.wait_for("before", worker)[2] for worker in range(3)} != {expected}


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
