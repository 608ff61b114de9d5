"""No pull mixes versions, every push is applied once, and what a worker has of a version stays as it is meanwhile.

The model's elements are all equal in each version and differ between versions: whoever sees two values at
once has seen two versions at once. The scripts' workers look, and raise.
"""

from __future__ import annotations

import os
import signal

import pytest

from support.events import TELL, await_stop
from support.launch import Launch
from support.runs import Run, run
from support.runs import ended as ended_run
from support.scripts import script
from support.sound import right

pytestmark = pytest.mark.real_run

EVEN = script(f"""
import signal
{TELL}

class Even(nn.Module):
    def __init__(self, *shapes):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self):
        return sum(part.sum() for part in self.parts)  # the gradient of every element is 1

def value_of(tensors):
    values = {{one for tensor in tensors for one in (tensor.min().item(), tensor.max().item())}}
    if len(values) != 1:
        raise SystemExit(f"two versions at once: {{sorted(values)}}")
    return values.pop()

me = paceline.worker()
""")

SCRIPT = (
    EVEN
    + """
model = Even((3,), (129, 65), (1,), (7, 5, 3), (4099,))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # so that a version's value is minus its number
model, optimizer = paceline.prepare(model, optimizer)
print("draws", torch.randint(0, 2**62, (3,)).tolist())
last = value_of(model.parameters())
steps, there, back = int(sys.argv[1]), *sys.argv[2:]
for step in range(steps):
    optimizer.zero_grad()
    if step == steps - 1 and me == 3:
        open(there).read()  # until worker 0 is at its last step too
    if step == steps - 1 and me == 0:
        open(there, "w").close()
        others = float(open(back).read())  # the version that worker 3's last step brought, meanwhile
        newest = value_of(model.state_dict().values())
        if not newest <= others < last == value_of(model.parameters()):
            raise SystemExit(f"state_dict() has version {-newest}, and worker 3 has {-others}")
    model().backward()
    optimizer.step()
    held = value_of(model.parameters())
    if step % 20 == me:
        newest = value_of(model.state_dict().values())
        if newest > held:
            raise SystemExit(f"state_dict() has version {-newest}, older than the worker's {-held}")
    if held >= last:
        raise SystemExit(f"version {-held} after version {-last}")
    last = held
if me == 3:
    open(back, "w").write(str(last))
"""
)

KILLED_AT = 120
KILL = f"""
[[event]]
worker = 1
at_step = {KILLED_AT}
kill = true
"""

WORKERS = 4
PUSHES = 240
"""Of each worker, but for the one that is killed."""


Ended = tuple[Run, dict[int, int]]
"""A run that is over, and how many pushes each worker must have made."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("fire")
    (folder / "kill.toml").write_text(KILL)
    flags = ("-n", str(WORKERS), "-p", "asp", "--threads", "1", "--tee", "none")
    flags += ("--scenario", str(folder / "kill.toml"))
    pushes = dict.fromkeys(range(WORKERS), PUSHES) | {1: KILLED_AT}
    pipes = [str(folder / end) for end in ("there", "back")]
    for pipe in pipes:
        os.mkfifo(pipe)
    return run(SCRIPT, *flags, args=[str(PUSHES), *pipes], tmp_path=folder).completed(), pushes


def test_no_pull_and_no_state_dict_ever_mixed_versions_or_went_back(ended: Ended) -> None:
    """The killed worker's step is neither pushed nor applied, and the others do all theirs."""
    fired, pushes = ended
    workers = {row["worker"]: (row["left"]["reason"], row["steps"]) for row in fired.summary["per_worker"]}
    assert workers == {
        worker: ("died" if count == KILLED_AT else "finished", count) for worker, count in pushes.items()
    }
    right(fired)


def test_every_push_is_applied_exactly_once(ended: Ended) -> None:
    """Each takes 1 off every element."""
    fired, pushes = ended
    total = sum(pushes.values())
    assert fired.summary["versions"] == fired.summary["steps"] == total
    assert {value for tensor in fired.final().values() for value in tensor.flatten().tolist()} == {-float(total)}
    every = sorted((worker, step) for worker, count in pushes.items() for step in range(count))
    assert sorted(fired.rows("SELECT worker, step FROM pushes")) == every
    assert sorted(fired.rows("SELECT worker, step FROM applied_updates")) == every


def test_workers_that_begin_alike_draw_different_numbers(ended: Ended) -> None:
    draws = {ended[0].log(worker) for worker in range(WORKERS)}
    assert all(line.startswith("draws [") for line in draws)
    assert len(draws) == WORKERS


# --- a worker that is stopped

IN_A_BACKWARD = (
    EVEN
    + """
folder = sys.argv[1]
there = lambda name: os.path.exists(os.path.join(folder, str(name)))
model = Even((3,), (600, 1000), (1,), (200, 100), (4099,), (300, 100))  # the second one is made in two parts
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)


def train():
    before = value_of(model.parameters())
    model().backward()
    if value_of(model.parameters()) != before:
        raise SystemExit("a version came during a step")
    optimizer.step()
    optimizer.zero_grad()


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        tell("has", *[int(part.grad is not None) for part in model.parts])
        tell("stops", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
        return gradient


further = 0
for step in range(5):
    train()
if me == 1:
    seen = [part.detach().clone() for part in model.parts]
    value = value_of(seen)
    halves = [(part * part).sum() / 2 for part in model.parts[:3]]  # autograd keeps the part itself: its gradient
    whole = Stop.apply(sum(halves))
    (whole + sum((part * part).sum() / 2 for part in model.parts[3:])).backward()
    for part, before in zip(model.parts, seen, strict=True):
        if not torch.equal(part.detach(), before):
            raise SystemExit("the parameters are others than before the stop")
        if not torch.equal(part.grad, before):
            raise SystemExit("the gradient is not that of the version that was seen before the stop")
    tell("saw", value)
    optimizer.step()
    optimizer.zero_grad()
    train()
    open(os.path.join(folder, "over"), "w").close()
while me != 1 and not there("over"):
    train()
    further += there("stopped")
    if further == 40:
        tell("further", me)
"""
)


def test_a_worker_stopped_in_its_backward_goes_on_with_the_version_it_had_and_its_gradient_is_applied(
    launch: Launch,
) -> None:
    """The others make 40 steps each meanwhile, more than there are slots."""
    flags = ("-n", "3", "-p", "asp", "--threads", "1", "--on-loss", "stop", "--tee", "none")
    process = launch.start(IN_A_BACKWARD, *flags, args=(str(launch.tmp_path),))
    stopped = int(launch.events.wait_for("stops")[1])
    assert launch.events.wait_for("has")[1:] == ["0", "0", "0", "1", "1", "1"], "it was to be half-way"
    await_stop(stopped)
    (launch.tmp_path / "stopped").touch()
    for worker in (0, 2):
        launch.events.wait_for("further", worker)
    assert not launch.events.so_far("saw")
    os.kill(stopped, signal.SIGCONT)
    run = ended_run(process).completed()
    saw = float(launch.events.wait_for("saw")[1])
    pushed = {row["worker"]: row["steps"] for row in run.summary["per_worker"]}
    assert pushed[1] == 5 + 1 + 1
    assert all(pushed[worker] >= 5 + 40 for worker in (0, 2))
    # each push takes 1 off, except worker 1's sixth, which takes off what it saw
    value = -(sum(pushed.values()) - 1) - saw
    assert {one for tensor in run.final().values() for one in tensor.unique().tolist()} == {value}
    gradient = "SELECT json_extract(body, '$.version') FROM facts WHERE kind = 'GradientReady' AND worker = 1"
    ((computed_on,),) = run.rows(f"{gradient} AND json_extract(body, '$.step') = 5")
    assert -saw == computed_on
    ((applied_in,),) = run.rows("SELECT version FROM applied_updates WHERE worker = 1 AND step = 5")
    assert applied_in - 1 - computed_on >= 2 * 40, "so many versions came between"


STOPPED_IN_COMMIT = script("""
model = nn.ParameterList(nn.Parameter(torch.zeros(2_000_000)) for _ in range(5))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(40):
    sum((p * 10.0 ** (step % 4)).sum() for p in model).backward()  # so the gradient is the same everywhere
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
paceline.finish()
print("values", sorted({value for p in model for value in (p.min().item(), p.max().item())}))
""")


def test_the_last_version_is_not_torn_by_what_the_scripts_do_while_it_is_made(launch: Launch) -> None:
    """At a limit the workers are let on before the store has made the last version of their gradients."""
    run = launch.run(STOPPED_IN_COMMIT, "-n", "3", "-p", "bsp", "--record", "0", "--max-steps", "12").completed()
    assert run.log(0).splitlines()[-1] == "values [-1111.0]"
