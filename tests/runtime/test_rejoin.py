"""Workers that died come back: when, what they begin with, and what of theirs counts."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from paceline.coordinator.joining import AWAY, Returns, There
from paceline.coordinator.member import Members
from paceline.host.contract import Updates
from paceline.scenario.scenario import Scenario
from support.events import said
from support.launch import Launch
from support.run_state import Clockwork
from support.runs import Run, ended, replayed
from support.scripts import SIGNS, script, that_draws, that_resumes
from support.sound import right

SAMPLES = 2 * 240
FUNCTIONS = f"""
{SIGNS}
seen = []

def linger(until):
    # a worker that joins gets what it begins with between two steps
    if not (SIGNS / until).exists():
        time.sleep(0.02)

def now():
    return {{
        "rate": optimizer.param_groups[0]["lr"],
        "momentum": [one["momentum_buffer"].clone() for one in optimizer.state.values()],
        "buffers": [one.clone() for one in model.buffers()],
        "parameters": [one.detach().clone() for one in model.parameters()],
    }}

def spoil():
    with torch.no_grad():
        for one in [*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())]:
            one.fill_(1e6)
"""


def back(protocol: str, workers: int = 2) -> tuple[str, ...]:
    """Flags of a run in which each worker may come back once."""
    return ("-n", str(workers), "-p", protocol, "--restart", "1", "--threads", "1", "--saves", "all")


def scenario(launch: Launch, *events: Mapping[str, Any], workers: int) -> tuple[str, ...]:
    """Flags of a run in which these workers are killed."""
    lines = ["[cluster]", f"workers = {workers}", 'compute = "5ms"']
    for event in events:
        lines += ["[[event]]", "kill = true", *(f"{key} = {json.dumps(value)}" for key, value in event.items())]
    file = launch.tmp_path / "scenario.toml"
    file.write_text("\n".join(lines))
    return ("--scenario", str(file), "--threads", "1")


def facts(run: Run, *kinds: str) -> list[str]:
    """The kinds of the facts of these kinds, in order."""
    return [kind for (kind,) in run.rows("SELECT kind FROM facts ORDER BY id") if kind in kinds]


def noted(launch: Launch, name: str = "joined.pt") -> Any:
    """What a worker noted of itself."""
    return torch.load(launch.tmp_path / name, weights_only=True)


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


COMES_IN_EPOCH_1 = """
if paceline.worker() == 0:
    if epoch == 1 and not (SIGNS / "in-epoch-1").exists():
        made("in-epoch-1")
        wait_for("back")
    if epoch == 1:
        linger("joined.pt")
    seen.append(now())
if paceline.worker() == 1 and epoch == 1 and not paceline.resumed():
    wait_for("in-epoch-1")
    os.kill(os.getpid(), signal.SIGKILL)
if paceline.resumed() and not seen:
    torch.save({**now(), "epoch": epoch}, SIGNS / "joined.pt")
    seen.append(None)
"""
SPOILS = """
if paceline.resumed():
    spoil()
    scheduler.step()
    made("back")
"""


@pytest.mark.parametrize("protocol", ["asp", "all-reduce", "ps-plus"])
def test_a_worker_that_comes_back_begins_with_what_the_others_have_by_then(protocol: str, launch: Launch) -> None:
    """Past epochs end at once, and what its script changed before its first step is gone."""
    end = 'if paceline.worker() == 0: torch.save([*seen, now()], SIGNS / "seen.pt")'
    script = that_draws(COMES_IN_EPOCH_1, before=FUNCTIONS + SPOILS, after=end)
    script = script.replace("epochs=2,", "epochs=2, keep={'scheduler': scheduler},")
    run = launch.run(script, *back(protocol)).completed()
    joined, seen = noted(launch), noted(launch, "seen.pt")
    assert joined["epoch"] == 1
    assert joined["rate"] == 0.05, "that of the others' scheduler, and not a new one's"
    since = "SELECT min(step) FROM facts WHERE kind = 'WorkerJoined'"
    rates = run.rows(f"SELECT DISTINCT learning_rates FROM pushes WHERE worker = 1 AND step >= ({since})")
    assert {json.loads(rate)[0] for (rate,) in rates} <= {0.05, 0.025}
    assert any(same(joined["buffers"], one["buffers"]) for one in seen)
    assert all(bool((one.abs() < 1e5).all()) for one in [*joined["parameters"], *joined["buffers"][:2]])
    assert joined["momentum"]
    if protocol != "asp":  # under which each worker is shown the newest version's as it asks
        assert any(same(joined["momentum"], one["momentum"]) for one in seen)
    assert facts(run, "ReplicaCopied") == ["ReplicaCopied"] * (protocol == "all-reduce")
    if protocol == "all-reduce":
        assert any(same(joined["parameters"], one["parameters"]) for one in seen)
    right(run)


def test_a_script_that_fails_is_not_started_again(launch: Launch) -> None:
    run = launch.run(that_draws("if paceline.worker() == 1: raise SystemExit('by the test')"), *back("asp"))
    assert run.code == 3
    assert "its script failed" in run.out
    assert "comes back" not in run.err


BEGINS = """
torch.save(now(), SIGNS / ("resumed.pt" if paceline.resumed() else "begun.pt"))
if paceline.resumed():
    spoil()
"""
DIES_ALONE = """
if paceline.resumed() and not seen:
    torch.save(now(), SIGNS / "joined.pt")
    seen.append(0)
if step == 4 and not paceline.resumed():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("protocol", ["asp", "ad-psgd", "all-reduce"])
def test_a_worker_that_is_alone_goes_on_with_what_was_made_or_as_training_began(protocol: str, launch: Launch) -> None:
    """No replica is left. Its samples since are missed, as the replica was lost with them."""
    script = that_resumes(DIES_ALONE, before=FUNCTIONS + BEGINS)
    run = launch.run(script, *back(protocol, workers=1)).completed()
    assert facts(run, "WorkerJoined") == ["WorkerJoined"]
    assert run.summary["samples"] + run.summary["samples_missed"] == SAMPLES
    joined, begun = noted(launch), noted(launch, "begun.pt")
    assert same(joined["parameters"], begun["parameters"]) == (protocol != "asp")
    assert same(joined["buffers"], begun["buffers"])
    right(run)


def test_a_run_that_is_interrupted_while_all_its_workers_are_away_can_be_made_again(launch: Launch) -> None:
    killed = {"worker": 0, "at_step": 5, "rejoin_after": "1h"}
    process = launch.start(that_resumes(), "-p", "asp", *scenario(launch, killed, workers=1))
    said(process, "worker 0 died .*\n")
    process.send_signal(signal.SIGINT)
    run = ended(process)
    assert run.summary["outcome"] == "interrupted"
    assert facts(run, "WorkerLeft") == ["WorkerLeft"]
    right(run)
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err


WITHOUT_A_LOADER = script(f"""
import signal
{SIGNS}
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(60):
    if paceline.worker() == 1 and step == 3 and not paceline.resumed():
        os.kill(os.getpid(), signal.SIGKILL)
    if paceline.resumed() and step < 2:
        made(("back", "joined")[step])
    if paceline.worker() == 0 and step == 5:
        wait_for("back")
    if paceline.worker() == 0 and step > 5 and not (SIGNS / "joined").exists():
        time.sleep(0.02)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    paceline.log(step=step)
paceline.finish()
""")


def test_a_joiner_without_a_loader_takes_part_from_its_first_step_whose_gradient_is_thrown_away(launch: Launch) -> None:
    run = launch.run(WITHOUT_A_LOADER, *back("asp")).completed()
    since = "(SELECT id FROM facts WHERE kind = 'WorkerJoined')"
    made = run.rows(f"SELECT count(*) FROM facts WHERE kind = 'GradientReady' AND worker = 1 AND id > {since}")
    assert made == [(59,)]
    ((first,),) = run.rows("SELECT step FROM facts WHERE kind = 'WorkerJoined'")
    logged = run.rows(f"SELECT value FROM scalars WHERE worker = 1 AND step >= {first} ORDER BY rowid")
    assert logged[0] == (1.0,), "what it logged of the step whose gradient is thrown away"
    right(run)


def test_a_kill_by_time_is_of_the_run_s_time_and_does_not_come_again_where_the_run_goes_on(launch: Launch) -> None:
    flags = scenario(launch, {"worker": 1, "at": "1ms"}, {"worker": 0, "at": "1h"}, workers=2)
    stopped = launch.run(that_resumes(), "-p", "asp", *flags, "--max-steps", "20").completed()
    died = "SELECT count(*) FROM facts WHERE kind = 'WorkerLeft' AND body LIKE '%died%'"
    assert stopped.rows(died) == [(1,)]
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.rows(died) == [(1,)]
    assert resumed.rows("SELECT 1 FROM facts WHERE kind = 'GradientReady' AND worker = 1")
    assert resumed.summary["samples"] == SAMPLES


# --- when a process begins anew: what depends on the hosts of workers


class Company:
    """Workers 0 and 1 train, and worker 1 dies. Its host is where `there` says."""

    def __init__(self) -> None:
        self.there: There = "here"
        self.clock = Clockwork()
        self.lines: list[str] = []
        self.in_vain: list[int] = []
        self.host = Mock(numbers=(0, 1))
        self.has_room()
        settings = Mock(scenario=Scenario(), restart=1, start="together")
        loop: Any = self.clock
        self.members = Members(self.host, {}, lambda: 0.0)
        others: Any = Mock(there=lambda worker: self.there if worker == 1 else "here")
        output: Any = Mock(say=self.lines.append)
        self.returns = Returns(settings, self.members, self.host, others, loop, output)
        for worker in (0, 1):
            self.members.comes(worker)
            self.members.trains(worker)

    def has_room(self, full: bool = False) -> None:
        self.host.updates.return_value = Updates(coming=(), in_the_way=(), full=full)

    def dies(self, worker: int) -> None:
        member = self.members[worker]
        self.members.leaves(worker, "died")
        self.members.goes(worker)
        if (seconds := self.returns.due(member, None)) is not None:
            self.returns.begin_after(member, seconds)

    def go_on(self, time: float = 0.0) -> None:
        self.clock.pass_time(time - self.clock.time)
        self.in_vain += [member.worker for member in self.returns.go_on()]

    @property
    def begun(self) -> bool:
        return bool(self.host.start.called)


def test_a_worker_whose_host_is_away_begins_once_its_host_is_back() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.go_on(10 * AWAY)  # worker 0 trains, so nobody has to wait
    assert not company.begun
    assert company.returns.awaits([1])
    company.there = "here"
    company.go_on(10 * AWAY)
    company.host.start.assert_called_once_with([1])
    assert not company.returns.awaits([1])


def test_a_worker_comes_back_once_its_last_processes_leave_it_a_place() -> None:
    """Else the round that their updates are in would wait for the worker, and the worker for a place."""
    company = Company()
    company.has_room(full=True)
    company.dies(1)
    company.go_on()
    assert not company.begun
    company.has_room()
    company.go_on()
    assert company.begun


def test_a_worker_is_given_up_whose_host_ends_while_it_is_away() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.there = "gone"
    company.go_on()
    assert company.lines == ["worker 1 can't be started again: its host has ended"]
    assert company.in_vain == [1]
    assert not company.members[1].comes_back


def test_if_nobody_trains_a_host_has_a_minute_to_come_back() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.there = "away"
    company.members.leaves(0, "died")
    company.members.goes(0)
    company.go_on(100.0)
    company.go_on(100.0 + AWAY - 1)
    assert not company.in_vain
    company.go_on(100.0 + AWAY)
    assert company.lines == ["worker 1 can't be started again: its host has not come back within 60 s"]
    assert company.in_vain == [1]


def test_restart_1_starts_a_worker_again_once_and_not_twice() -> None:
    company = Company()
    company.dies(1)
    company.go_on()
    assert company.begun
    company.members.trains(1)
    company.dies(1)
    assert not company.members[1].comes_back
