"""Virtual processes: workers with scripts, and the one that makes versions. What they read and write are real bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import structs

from paceline.errors import PeerLost
from paceline.ipc import messages
from paceline.ipc.channel import attachment
from support.run_state import OFFER
from support.world.clock import Scheduler, Seconds
from support.world.contents import SIZE, TORN, WHOLE, Contents, digest, filled, share
from support.world.lines import Line, named_by
from support.world.network import Machine
from support.world.replicas import Replicas

KILLED, FAILED = 9, 1 << 8
"""Statuses of processes, as waitpid returns them."""
STATE = b"the optimizer's state"
SLOT, FLAGS, FIXED = 4 * SIZE, SIZE, 2 * SIZE
"""Bytes of a version, of an update's flags, and of what never moves."""
AREA = SLOT + FLAGS + SIZE
"""Bytes of an update, with its flags and buffers behind the rest."""
CHANGES = 0.2
"""How often a script changes gradients of a step that were told of."""
CUTS = {1: [0, SLOT], 2: [0, SIZE, SLOT], 4: [0, SIZE, 2 * SIZE, 3 * SIZE, SLOT]}
"""Where a version of so many pieces may be cut."""

PARAMETERS, IN_FRONT, BUFFERS = (0, SLOT), (SLOT, SLOT + FLAGS), (SLOT + FLAGS, AREA)
"""Ranges of an update's place, or a replica's: parameters, flags in front of the buffers, and these."""

Bytes = tuple[int, int]
"""The first byte of a range, and the byte after its last one."""

Course = Generator[Seconds | None, Any, None]
"""What a process does. It yields for how long it computes, or None to wait for a message, which it then gets."""


class Wrong(AssertionError):
    """A process has found what may not be."""


class Program:
    def __init__(self, scheduler: Scheduler, machine: Machine, line: Line, what: str, lots: random.Random) -> None:
        """`line`: its end of the channel to its host's process."""
        self.machine = machine
        self.number = machine.begins()
        self.status: int | None = None
        """How it has ended."""
        self.what = what
        self.slow: Seconds = 0.0
        """Seconds that it is stopped for, once."""
        self._scheduler = scheduler
        self._line = line
        self._lots = lots
        self._files: list[int] = []
        self._waits = self._woken = False
        self._turn = 0
        line.changed = self._wake
        self._course = self.course()
        self._plan(0.0)

    def course(self) -> Course:
        raise NotImplementedError

    def end(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self._line.close()
            for file in self._files:
                os.close(file)
            self._files.clear()
            self.machine.ended(self.number)

    def say(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        with suppress(PeerLost):
            assert self._line.try_to_send(message, descriptors), f"nobody hears {self.what}"

    def takes(self, most: Seconds) -> Seconds:
        """Draw how long something takes."""
        slow, self.slow = self.slow, 0.0
        return most * self._lots.random() + slow

    def _wake(self) -> None:
        if self._waits and not self._woken:
            self._woken = True
            self._plan(0.0)

    def _plan(self, seconds: Seconds) -> None:
        self._turn += 1
        turn = self._turn
        self._scheduler.after(seconds, lambda: self._go_on() if turn == self._turn else None)

    def _go_on(self) -> None:
        heard = None
        self._woken = False
        while self.status is None:
            if self._waits:
                if not self._line.ready():
                    return
                self._waits = False
                try:
                    heard, files = self._line.receive()
                except PeerLost:  # its launcher has ended, and this process with that
                    self.end(KILLED)
                    return
                self._files += files
                heard = heard, files
            try:
                wanted = self._course.send(heard)
            except StopIteration:
                self.end(0)
                return
            except Fails:
                self.end(FAILED)
                return
            heard = None
            if wanted is not None:
                self._plan(wanted)
                return
            self._waits = True


class Memory:
    """A region, as a process sees it that has its descriptor."""

    def __init__(self, file: int, slots: int, owned: int) -> None:
        """`owned`: how many areas workers have. Those of sums lie behind what never moves."""
        self._file = file
        self._slots = slots
        self.owned = owned

    def slot(self, number: int) -> tuple[int, int]:
        """Where a version's place begins, and its bytes."""
        return number * SLOT, SLOT

    def area(self, number: int) -> tuple[int, int]:
        return self._slots * SLOT + number * AREA + (2 * FIXED if number >= self.owned else 0), AREA

    def fixed(self) -> tuple[int, int]:
        return self._slots * SLOT + self.owned * AREA, FIXED

    def write(self, place: tuple[int, int], content: bytes, within: Bytes | None = None) -> None:
        """Fill the place with that, or a range of it."""
        begin, end = within or (0, place[1])
        os.pwrite(self._file, filled(content, place[1])[begin:end], place[0] + begin)

    def read(self, place: tuple[int, int]) -> bytes:
        """What the place begins with."""
        return os.pread(self._file, SIZE, place[0])

    def read_from(self, place: tuple[int, int], begin: int) -> bytes:
        """What the place has from that byte on."""
        return os.pread(self._file, place[1] - begin, place[0] + begin)

    def has(self, place: tuple[int, int], content: bytes, within: Bytes) -> bool:
        """Whether a range of the place has that content."""
        begin, end = within
        return os.pread(self._file, end - begin, place[0] + begin) == filled(content, place[1])[begin:end]

    def check(self, place: tuple[int, int], content: bytes, who: str, what: str, within: Bytes | None = None) -> None:
        """Raise Wrong unless the place has that content, or a range of it."""
        begin, end = within or (0, place[1])
        found = os.pread(self._file, end - begin, place[0] + begin)
        if found != filled(content, place[1])[begin:end]:
            raise Wrong(f"{who} finds other bytes than those of {what} from byte {begin} on: {found.hex()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the script of every worker does."""

    loads: bool
    """Whether there is a loader."""
    epochs: int
    batches: int
    """Of each epoch; without a loader, each worker's steps in each."""
    starts: Seconds
    """Seconds to `prepare`, at most."""
    computes: Seconds
    """Seconds of a step, at most."""
    finishes: bool
    """Whether it calls `finish`."""
    looks: float
    """How often it calls `state_dict` between two steps."""
    pieces: int = 1
    """Of its model. See `CUTS`."""
    encodes: bool = False
    """Whether updates are encoded. They are as large as others, and lie where these do."""

    def offer(self) -> messages.worker.Offered:
        """What a worker brings to `prepare`."""
        return messages.worker.Offered(
            **{name: getattr(OFFER, name) for name in OFFER.__struct_fields__}
            | {
                "slot_bytes": SLOT,
                "push_bytes": AREA,
                "flags_bytes": FLAGS,
                "buffers_bytes": SIZE,
                "cuts": CUTS[self.pieces],
                "encoded_cuts": CUTS[self.pieces] if self.encodes else [],
                "fixed_bytes": FIXED,
                "scalars": [{"lr": 0.5, "momentum": 0.9}],
                "loads": self.loads,
                "epoch_samples": self.batches if self.loads else None,
                "epochs": self.epochs,
            }
        )


class Fails(Exception):
    """The script raises."""


class Leaves(Exception):
    """The script is left where it is."""


class Worker(Program):
    """A worker's process. It says and hears what a real one does:

    see `worker_process.worker` and `training.session`.
    """

    def __init__(
        self,
        worker: int,
        script: Script,
        contents: Contents,
        store: Callable[[Line, int, messages.worker.ForkStore], object],
        scheduler: Scheduler,
        machine: Machine,
        line: Line,
        lots: random.Random,
        *,
        host: str,
        replicas: Replicas | None,
        averages: Seconds,
    ) -> None:
        """`store` begins the process that makes versions. `host`: where it is. `replicas`: None where none are.

        `averages`: what a share of an average takes at most.
        """
        self.worker = worker
        self.host = host
        self.replicas = replicas
        self.averages = averages
        self.averager: Averager | None = None
        """Its thread that makes shares of averages."""
        self._shown: tuple[Bytes, bytes] | None = None
        """The place of the replica that its script sees, and what is to lie there."""
        self.fails_at: int | None = None
        """The message of its own at which its script fails."""
        self._script = script
        self._contents = contents
        self._store = store
        self._pace = lots.choice([1.0, 1.0, 1.0, 0.2, 3.0])
        self._heard: list[tuple[messages.Message, list[int]]] = []
        self._came: list[int] = []
        """Descriptors that came along with what it has waited for."""
        self._stopped = self._computes = self._joins = False
        self._tells = False
        """Whether it is to tell of gradients while it computes others."""
        self._rounds = False
        """Whether several own steps go into one update."""
        self._unmade: tuple[Bytes, int] | None = None
        """The area of the update that it has begun, and its last step so far."""
        self._last = -1
        self._go: messages.worker.Compute | None = None
        """What it was permitted last, from the step on that it is at."""
        self._revoked = False
        """Whether the rest of that is revoked."""
        self._along: list[tuple[int, int]] = []
        """Batches that it was leased along with others."""
        self._said = 0
        self._memory: Memory
        """There from the beginning of training on."""
        self._in_area: dict[int, int] = {}
        """By area: the last step whose update it has put there."""
        self.forks: int | None = None
        """The name of the end that is to be the store's, until that is forked."""
        super().__init__(scheduler, machine, line, f"worker {worker}", lots)

    def end(self, status: int) -> None:
        super().end(status)
        self.drops_fork()
        if self.averager is not None:
            self.averager.end(status)

    def drops_fork(self) -> None:
        """What came along to be the store's is closed, as this process has ended before it forked that."""
        if self.forks is not None and self.forks in self.machine.ends:
            self.machine.ends.pop(self.forks).close()

    def say(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        self._said += 1
        if self._said == self.fails_at:
            raise Fails
        super().say(message, descriptors)

    def course(self) -> Course:
        message, _ = yield None
        if isinstance(message, messages.worker.Start):
            yield self.takes(self._script.starts)
            with suppress(Leaves):
                yield from self._runs()
        self.say(messages.worker.ScriptEnded())
        for asked, _ in self._heard:
            self._hands_over(asked)
        while not isinstance(message, messages.worker.Exit):
            message, files = yield None
            self._hands_over(message)
            self._does(message, files)

    def _does(self, message: messages.Message, files: list[int]) -> bool:
        """Do what may be asked for at any time. Return whether the message does so."""
        match message:
            case messages.worker.MakeUpdate():
                self._makes_update()
            case messages.worker.GiveState():
                file = attachment(STATE)
                self.say(messages.worker.StateGiven(None), (file,))
                os.close(file)
            case messages.worker.SwitchPart(local_steps=local_steps, at_once=at_once):
                if self._unmade is not None and not self._stopped:
                    raise Wrong(f"{self.what} is told of another part in the middle of an update")
                if files and os.pread(files[0], 100, 0) != STATE:
                    raise Wrong(f"{self.what} goes on with another state than the store's")
                self._rounds, self._tells = local_steps and not at_once, message.tells
            case _:
                return False
        return True

    def _runs(self) -> Course:
        self.say(self._script.offer())
        first = yield from self._begins()
        go = None if self._joins else (yield from self._released())
        for epoch in range(first, self._script.epochs):
            done = 0
            while go is not None or self._joins:
                batches = None
                if self._script.loads:
                    leased = yield from self._leases(epoch)
                    if leased is None:
                        break
                    batches = [leased]
                elif done == self._script.batches:
                    break
                if self._joins and (go := (yield from self._takes_up())) is None:
                    break
                assert go is not None
                yield from self._computes_step(go, batches)
                done += 1
                go = yield from self._released()
                if go is not None and self._lots.random() < self._script.looks:
                    yield from self._looks()
        if go is not None or self._joins:
            self._makes_update()
            self.say(messages.worker.Declined())
            yield self.takes(self._script.computes)
        else:
            yield from self._looks(hold=True)
        if self._lots.random() < self._script.looks:
            yield from self._looks()
        if self._script.finishes:
            self.say(messages.worker.FinishWanted())
            yield from self._await(messages.worker.FinalRecorded, even_stopped=True)
            yield self.takes(self._script.computes)

    def _takes_up(self) -> Generator[Seconds | None, Any, messages.worker.Compute | None]:
        """It comes while others train: it takes part from now on."""
        self._joins = False
        if not self._script.loads:
            self.say(messages.worker.Joins())
        if (told := (yield from self._await(messages.worker.TakeUp))) is None:
            return None
        if self.replicas is not None:
            self._takes_up_replica(told)
        return (yield from self._released())

    def _takes_up_replica(self, told: messages.worker.TakeUp) -> None:
        """A recorded mean comes along, to be put into its place, or its replica lies there."""
        assert self.replicas is not None
        assert told.area is not None
        if self._shown is not None:
            self._sees(*self._shown, "what it has shown until it takes part", PARAMETERS)
        place, content = self._memory.area(told.area), self.replicas.taken_up[self.worker]
        if told.recorded:
            if (found := os.pread(self._came[0], 100, 0)) != content:
                raise Wrong(f"{self.what} begins with {found.hex()}, and not with the recorded mean {content.hex()}")
            for within in (PARAMETERS, BUFFERS):
                self._memory.write(place, content, within)
        for within in (PARAMETERS, BUFFERS):
            self._sees(place, content, "the replica that it is given", within)

    def _hands_over(self, message: messages.Message) -> None:
        """Give what the script keeps to a worker that joins, if that is what the message asks for."""
        if isinstance(message, messages.worker.HandOver):
            file = attachment(STATE)
            self.say(messages.worker.Handed(message.worker, message.joining, None), (file,))
            os.close(file)

    def _begins(self) -> Generator[Seconds | None, Any, int]:
        """Wait for training to begin, or to let it in. Return the epoch that its script goes on in."""
        while True:
            message, files = yield None
            match message:
                case messages.worker.ForkStore():
                    yield self.takes(self._script.starts)
                    self.forks = None
                    self._store(self.machine.ends.pop(named_by(files[1])), os.dup(files[0]), message)
                case messages.worker.Begin(slots=slots, areas=areas, tells=tells):
                    self._memory, self._tells = Memory(files[0], slots, areas * self._contents.capacity), tells
                    self._sees(self._memory.fixed(), self._contents.fixed, "what never moves")
                    self._joins = message.joins
                    self._rounds = message.local_steps and not message.at_once
                    if message.state == "replicas":
                        self._begins_to_average(files[1], message)
                    return 0 if message.resumed is None else message.resumed.epoch
                case messages.worker.StopTraining() | messages.worker.Exit():
                    raise Leaves
                case _:
                    raise Wrong(f"{self.what} was sent {message} before training began")

    def _begins_to_average(self, end: int, begin: messages.worker.Begin) -> None:
        """Its replica is shown, and its thread takes orders. One that joins may show what was left of a dead one's."""
        assert self.replicas is not None
        place = self._memory.area(begin.place)
        if not begin.joins:
            self._sees(place, self._contents.version(0), "what training begins with", PARAMETERS)
            self._shown = place, self._contents.version(0)
        line = self.machine.ends.pop(named_by(end))
        line.expects(messages.worker.ToAverager)
        self.averager = Averager(self, self._memory, CUTS[self._script.pieces], line)

    def _computes_replica(self, go: messages.worker.Compute, batches: list[tuple[int, int]] | None) -> Course:
        """Compute on its own replica as it was at the release, whatever becomes of it meanwhile."""
        assert self.replicas is not None
        memory, began = self._memory, self._scheduler.now
        area = memory.area(go.area)
        assert self._shown is not None
        self._sees(*self._shown, f"its replica at step {go.step}", PARAMETERS)
        memory.write(area, TORN)
        yield from self._computes_gradient(go.step, area)
        self._sees(*self._shown, f"its replica at the end of step {go.step}", PARAMETERS)
        memory.write(area, self._contents.update(self.worker, go.step))
        self._computes = False
        seconds = self._scheduler.now - began
        self.say(
            messages.worker.StepFinished(go.step, go.version, batches, [], None, began, seconds, 0.0, 0.0, 0.0, 0.0)
        )

    def _steps_replica(self, order: messages.worker.MakeStep) -> Course:
        """Step its replica, with its own gradient or a group's mean. It sees what comes of that where it is shown."""
        assert self.replicas is not None
        memory, step = self._memory, self.replicas.steps[self.worker, order.step]
        what = f"its replica before it makes step {order.step}"
        source, target = memory.area(order.source), memory.area(order.target)
        if (order.gradients is None) != (step.group is None):
            raise Wrong(f"{self.what} is to make step {order.step} with {order.gradients}, and of {step.group}")
        for done in (False, True):
            if not done or source != target:
                self._sees(source, step.before, what, PARAMETERS)
            if order.gradients is not None and step.group is not None:
                for within in (PARAMETERS, IN_FRONT):
                    mean = f"the mean of {sorted(step.group.terms)}"
                    self._sees(memory.area(order.gradients), step.group.mean, mean, within)
            for within in (PARAMETERS, BUFFERS):
                memory.write(target, step.after if done else TORN, within)
            if not done:
                yield self.takes(self.averages)
        if self._shown is not None and self._shown[0] == target:
            self._shown = target, step.after
        self.say(messages.worker.Stepped(order.step, None))

    def _computes_step(self, go: messages.worker.Compute, batches: list[tuple[int, int]] | None) -> Course:
        if self.replicas is not None:
            yield from self._computes_replica(go, batches)
            return
        memory, contents = self._memory, self._contents
        began = self._scheduler.now
        contents.computes[self.worker] = go.step
        slot, area = None if go.slot < 0 else memory.slot(go.slot), memory.area(go.area)
        if slot is not None:
            self._sees(slot, contents.version(go.version), f"version {go.version}")
        elif self._unmade is None or self._unmade[0] != area:
            raise Wrong(f"{self.what} is to go on with its own parameters in another area than those of its round")
        self._sees_own(go)
        memory.write(area, TORN)
        yield from self._computes_gradient(go.step, area)
        if slot is not None:
            self._sees(slot, contents.version(go.version), f"version {go.version} at the step's end")
        if self._rounds:
            self._unmade = area, go.step
        else:
            memory.write(area, contents.update(self.worker, go.step))
        self._computes, self._in_area[go.area] = False, go.step
        seconds = self._scheduler.now - began
        self.say(
            messages.worker.StepFinished(go.step, go.version, batches, [], None, began, seconds, 0.0, 0.0, 0.0, 0.0)
        )

    def _makes_update(self) -> None:
        """Put the update of its own steps where it goes, if there are any that are in none."""
        if self._unmade is not None:
            (area, step), self._unmade = self._unmade, None
            self._memory.write(area, self._contents.update(self.worker, step))
            self.say(messages.worker.UpdateMade(step))

    def _computes_gradient(self, step: int, area: Bytes) -> Course:
        """Compute. If anybody listens, tell of gradients as they are there, and sometimes change them at the end.

        Flags are told before that, as they are likely to be.
        """
        seconds = self.takes(self._script.computes) * self._pace
        ranges = list(pairwise(CUTS[self._script.pieces])) if self._tells else []
        told = ranges[: self._lots.randint(0, len(ranges))]
        changes = bool(told) and self._lots.random() < CHANGES
        content = self._contents.draft(self.worker, step) if changes else self._contents.update(self.worker, step)
        if changes and self.replicas is not None:
            self.replicas.drafts.add((self.worker, step))
        for within in [*([IN_FRONT] if told else []), *reversed(told)]:
            yield 0.0 if within == IN_FRONT else seconds / (len(told) + 1)
            self._memory.write(area, content, within)
            scalars = [{"lr": 0.5 if self._lots.random() < 0.9 else 0.25, "momentum": 0.9}]
            self.say(messages.worker.Accumulated(step, *within, scalars if within == IN_FRONT else None))
        yield seconds / (len(told) + 1)
        if changes:
            self.say(messages.worker.Withdrawn(step))

    def _sees_own(self, go: messages.worker.Compute) -> None:
        """What it has pushed and the version lacks is named, and lies where it was put."""
        lacking = self._contents.lacking(self.worker, go.step)
        found = [self._in_area.get(area, -1) for area, _ in go.ahead]
        if found != lacking:
            raise Wrong(f"{self.what} lacks {found} in version {go.version}, by what it is told, and {lacking} in fact")
        for step, (area, _) in zip(found, go.ahead, strict=True):
            content = self._contents.update(self.worker, step)
            self._sees(self._memory.area(area), content, f"step {step}, which version {go.version} lacks")

    def _further(self) -> bool:
        """Whether it goes on by itself, as its last release permits, and it has heard nothing against that by now."""
        go = self._go
        self._go = None
        if go is None or go.steps == 1:
            if self._rounds and go is not None:
                self._makes_update()
            return False
        while self._line.ready():
            message, files = self._line.receive()
            self._files += files
            self._hears(message, files)
        if not self._stopped and self._revoked:
            self._makes_update()
            self.say(messages.worker.Declined(paused=True, revoked=True))
        elif not self._stopped:
            self._last, self._computes = go.step + 1, True
            self._go = structs.replace(go, step=go.step + 1, slot=-1, steps=go.steps - 1)
        return self._go is not None

    def _released(self) -> Generator[Seconds | None, Any, messages.worker.Compute | None]:
        if self._further():
            return self._go
        go: messages.worker.Compute | messages.worker.MakeStep | None = yield from self._await(
            messages.worker.Compute, messages.worker.MakeStep
        )
        while isinstance(go, messages.worker.MakeStep):
            yield from self._steps_replica(go)
            go = yield from self._await(messages.worker.Compute, messages.worker.MakeStep)
        if go is not None:
            if go.step <= self._last:
                raise Wrong(f"{self.what} is to compute step {go.step} after step {self._last}")
            self._last, self._computes, self._go = go.step, True, go
            if self.replicas is not None:
                self._shown = self._memory.area(go.slot), self.replicas.released[self.worker, go.step]
                self._sees(*self._shown, f"its replica at step {go.step}", PARAMETERS)
        return go

    def _leases(self, epoch: int) -> Generator[Seconds | None, Any, tuple[int, int] | None]:
        most = 1 if self._go is None else self._go.steps
        while not self._stopped:
            if self._along:
                return self._along.pop(0)
            self.say(messages.worker.LeaseWanted(epoch, 1, f"order of epoch {epoch}", most=most))
            message = yield from self._await(
                messages.worker.Leased, messages.worker.EpochOver, messages.worker.OrderWanted
            )
            if isinstance(message, messages.worker.Leased):
                self._along = [(message.epoch, index) for index in (message.index, *message.along)]
                continue
            if not isinstance(message, messages.worker.OrderWanted):
                return None
            order = [[index] for index in range(self._script.batches)]
            digest = f"order of epoch {message.epoch}"
            self.say(
                messages.worker.OrderDrawn(message.epoch, message.block, digest, order, True, self._script.batches)
            )
        return None

    def _looks(self, hold: bool = False) -> Course:
        """`state_dict`: of the newest version, and sometimes the optimizer's."""
        if self.replicas is not None:  # a worker's newest version is its own replica, and so is the optimizer
            for _ in range(2):
                if self._shown is not None:
                    self._sees(*self._shown, "the replica that it shows", PARAMETERS)
                yield self.takes(self._script.computes)
            return
        self.say(messages.worker.SnapshotWanted(hold))
        shown = yield from self._await(messages.worker.SnapshotReady, even_stopped=True)
        place = self._memory.slot(shown.slot)
        content = self._memory.read(place)
        self._sees(place, content, "one version alone")
        if content not in [self._contents.version(version) for version in range(self._contents.newest + 1)]:
            raise Wrong(f"{self.what} is shown what is no version: {content.hex()}")
        if not hold and self._lots.random() < 0.5:
            self.say(messages.worker.StateWanted())
            yield from self._await(messages.worker.OptimizerState, even_stopped=True)
            if not self._came:  # a part of the protocol by which it has its own
                return
            if (state := os.pread(self._came[0], 100, 0)) != STATE:
                raise Wrong(f"{self.what} is sent {state!r} for the optimizer's state")
        yield self.takes(self._script.computes)
        self._sees(place, content, "the version that it was shown")
        if not hold:
            self.say(messages.worker.SnapshotTaken())

    def _await(self, *kinds: type[messages.Message], even_stopped: bool = False) -> Generator[Seconds | None, Any, Any]:
        """Wait for the next message of these kinds; None once the run is stopped, unless it is answered even then."""
        while True:
            if messages.worker.Compute in kinds or messages.worker.FinalRecorded in kinds:
                asked = [one for one in self._heard if isinstance(one[0], messages.worker.HandOver)]
                for one in asked:
                    self._heard.remove(one)
                    self._hands_over(one[0])
            for heard in self._heard:
                if isinstance(heard[0], kinds) and (even_stopped or not self._stopped):
                    self._heard.remove(heard)
                    message, self._came = heard
                    return message
            if self._stopped and not even_stopped:
                return None
            self._hears(*(yield None))

    def _hears(self, message: messages.Message, files: list[int]) -> None:
        if self._does(message, files):
            return
        match message:
            case messages.worker.Compute(step=step) if self._computes:
                raise Wrong(f"{self.what} is to compute step {step} while it computes step {self._last}")
            case messages.worker.Exit():
                raise Wrong(f"{self.what} is to exit while its script goes on")
            case messages.worker.Revoke():
                self._revoked = True
            case messages.worker.StopTraining(at_once=at_once):
                self._stopped = True
                if at_once:
                    raise Leaves
            case _:
                self._revoked &= not isinstance(message, messages.worker.Compute)
                self._heard.append((message, files))

    def _sees(self, place: tuple[int, int], content: bytes, what: str, within: Bytes | None = None) -> None:
        self._memory.check(place, content, self.what, what, within)


class Averager(Program):
    """A worker's thread that makes its shares of averages: see `training.averages`. It ends with the worker."""

    def __init__(self, worker: Worker, memory: Memory, cuts: Sequence[int], line: Line) -> None:
        """`cuts`: where a mean may be cut."""
        self._worker = worker
        self._memory = memory
        self._cuts = cuts
        what, lots = f"the averager of {worker.what}", random.Random(worker._lots.random())
        super().__init__(worker._scheduler, worker.machine, line, what, lots)

    def course(self) -> Course:
        while True:
            order, _ = yield None
            yield from self._makes(order)
            self.say(messages.worker.ShareAveraged(order.number))

    def _makes(self, order: messages.worker.AverageShare) -> Course:
        """Make its share, piece by piece. What goes with the first byte is of the first one of a share."""
        worker, memory = self._worker, self._memory
        assert worker.replicas is not None
        group = worker.replicas.averages[order.number]
        terms, weights, made = group.share(worker.host, order.of, gathers=worker._script.encodes)
        if order.members != sorted(group.parts[worker.host]) or order.weights != weights:
            raise Wrong(f"{self.what} is to make a share of {group} by {order}")
        if len(order.sources) != len(terms) or order.target in order.sources:
            raise Wrong(f"{self.what} is to average {len(terms)} terms by {order}")
        part, target = order.members.index(worker.worker), memory.area(order.target)
        pieces = [one for one in pairwise(self._cuts) if order.begin <= one[0] < order.end]
        if (order.begin, order.end) == IN_FRONT:
            pieces = [IN_FRONT]
        size = sum(end - begin for begin, end in pieces)
        mine = [one for one in pieces if (one[0] - pieces[0][0]) * len(order.members) // size == part]
        if part == 0 and order.begin == 0:
            mine += [IN_FRONT, BUFFERS] if order.flags else [BUFFERS]
        flags = [] if weights is None else [IN_FRONT]
        for within in mine:
            memory.write(target, TORN, within)
        for within in mine:
            yield self.takes(worker.averages / len(mine))
            void = not worker.replicas.counts(order.number)  # the places of its terms may be others' by now
            for source, term in () if void else zip(order.sources, terms, strict=True):
                for read in dict.fromkeys([*flags, *([within] if within != IN_FRONT else [])]):
                    memory.check(memory.area(source), term, self.what, f"a term of average {order.number}", read)
            memory.write(target, TORN if void else made, within)


@dataclass(slots=True)
class _Gathering:
    """The optimizer's state on its way to a worker, as of that version."""

    worker: int | None
    version: int
    own: Bytes
    """What it made itself then."""
    lacking: int
    """How many shares are to come."""
    came: list[bytes] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether what has come is all of that version's, each range once."""
        ranges, at = [self.own] if self.own[0] < self.own[1] else [], 0
        for content in self.came:
            begin, end, version = (int(word) for word in content.split() if word.isdigit())
            if version != self.version:
                return False
            ranges.append((begin, end))
        for begin, end in sorted(ranges):
            if begin != at:
                return False
            at = end
        return at == SLOT


class Store(Program):
    def __init__(
        self,
        host: str,
        heads: bool,
        file: int,
        order: messages.worker.ForkStore,
        contents: Contents,
        cuts: Sequence[int],
        seconds: Seconds,
        scheduler: Scheduler,
        machine: Machine,
        line: Line,
        lots: random.Random,
    ) -> None:
        """`heads`: whether its host is the head's. `seconds`: what a commit takes at most. `cuts`: see `CUTS`."""
        self.host = host
        self.replicas: Replicas | None = None
        """None where no workers own one."""
        self.range = order.begin, order.end
        self.not_finite: Callable[[int], bool] = lambda version: False
        """Whether it finds a NaN in its range of that version."""
        self._heads = heads
        self._held: dict[str, messages.store.Record] = {}
        """By file: what is to be written there once all of it has come."""
        self._gatherings: dict[int, _Gathering] = {}
        self._contents = contents
        self._cuts = cuts
        self._seconds = seconds
        self.others: Callable[[], list[Store]] = list
        """The stores of the other hosts."""
        self._memory = Memory(file, order.slots, order.areas * contents.capacity)
        self.made = 0
        self._early = -1, list[Bytes]()
        """The number of what it has begun early, and the pieces that are made of that."""
        super().__init__(scheduler, machine, line, f"the store of {host}", lots)
        self._files.append(file)

    def course(self) -> Course:
        memory = self._memory
        if self._heads:
            first = memory.slot(0) if self.replicas is None else memory.area(0)
            memory.write(first, self._contents.version(0))
            memory.write(memory.fixed(), self._contents.fixed)
        else:  # what its own worker begins with, until the head's comes
            memory.write(memory.slot(0), TORN)
            memory.write(memory.fixed(), TORN)
        self.say(messages.store.StoreReady(self.number, "beginning"))
        while True:
            message, files = yield None
            match message:
                case messages.store.Commit():
                    yield from self._commits(message)
                case messages.store.MakeEarly():
                    yield from self._makes_early(message)
                case messages.store.MakeSum():
                    yield from self._sums_up(message)
                case messages.store.Record(waits=True):
                    self._held[message.file] = message
                case messages.store.Record():
                    self._records(message)
                case messages.store.GoOn(file=file):
                    self._records(self._held.pop(file))
                case messages.store.RecordMean():
                    yield from self._records_mean(message)
                case messages.store.SendWhole():
                    self._says_with(messages.store.WholeReady(None), WHOLE)
                case messages.store.Load():
                    self._loads(files[0])
                case messages.store.ExtendRange():
                    self._takes_range(message, files[0])
                case messages.store.SendShare(number=number):
                    content, answer = share(*self.range, self.made), messages.store.ShareReady(number, None)
                    self._scheduler.after(self.takes(self._seconds), partial(self._says_with, answer, content))
                case messages.store.SendState(worker=worker, number=number, shares=shares):
                    if shares:
                        self._gatherings[number] = _Gathering(worker, self.made, self.range, shares)
                    else:
                        self._says_with(messages.store.StateReady(worker, None), STATE)
                case messages.store.TakeState() if os.pread(files[0], 100, 0) == STATE:
                    pass
                case messages.store.Become():
                    pass
                case messages.store.TakeShare(number=number, error=None):
                    self._takes_share(number, files[0])
                case messages.store.Quit():
                    return
                case _:
                    raise Wrong(f"{self.what} was sent {message}")

    def _commits(self, order: messages.store.Commit) -> Course:
        if order.version != self.made + 1:
            raise Wrong(f"{self.what} is to make version {order.version} after version {self.made}")
        memory, target = self._memory, self._memory.slot(order.target)
        self._reads(order)
        there, self._early = self._early[1] if self._early[0] == order.early else [], (-1, [])
        pieces = [one for one in self._pieces(*self.range) if one not in there]
        for piece in pieces:
            memory.write(target, TORN, piece)
        if self._lots.random() < 0.3:  # two threads make them
            pieces.reverse()
        for piece in there:
            memory.check(target, self._contents.version(order.version), self.what, "what it has made early", piece)
        for piece in pieces:
            yield self.takes(self._seconds / len(pieces))
            self._reads(order)
            memory.write(target, self._contents.version(order.version), piece)
            if order.tells:
                self.say(messages.store.Making(order.version, *piece))
        self.made = order.version
        found = ("weight", None) if order.look and self.not_finite(order.version) else None
        self.say(messages.store.Committed(order.version, order.version, found))

    def _makes_early(self, order: messages.store.MakeEarly) -> Course:
        """Make pieces of what the next version is to be, if its terms are what they are likely to be in the end."""
        memory, contents, target = self._memory, self._contents, self._memory.slot(order.target)
        if self._early[0] != order.number:
            self._early = order.number, []
        made = self._lots.random() < 0.9
        for piece in self._pieces(order.begin, order.end) if made else ():
            memory.write(target, TORN, piece)
            yield self.takes(self._seconds / len(self._cuts))
            terms, right = list[tuple[int, int, float]](), True
            for area, weight in order.pushed:
                worker = area % contents.capacity
                terms.append((worker, contents.computes[worker], weight))
                content = contents.update(*terms[-1][:2])
                right &= all(memory.has(memory.area(area), content, within) for within in (piece, IN_FRONT))
            memory.write(target, digest(contents.version(self.made), tuple(terms)) if right else TORN, piece)
            self._early[1].append(piece)
        self.say(messages.store.MadeEarly(order.number, order.begin, order.end, made))

    def _pieces(self, begin: int, end: int) -> list[Bytes]:
        """The pieces of a version that lie there."""
        return [one for one in pairwise(self._cuts) if begin <= one[0] and one[1] <= end]

    def _sums_up(self, order: messages.store.MakeSum) -> Course:
        memory, place = self._memory, self._memory.area(order.target)
        named = [self._named(area) for area, _ in order.terms]
        memory.write(place, TORN)
        if None in named:  # the sum is void by now
            self.say(messages.store.Summed(order.number, None))
            return
        terms = tuple((*one, weight) for one, (_, weight) in zip(named, order.terms, strict=True) if one)
        content = self._contents.sums(order.number, terms)
        memory.write(place, content, (SLOT, SLOT + FLAGS))
        for piece in pairwise(self._cuts):
            yield self.takes(self._seconds / len(self._cuts))
            memory.write(place, content, piece)
            self.say(messages.store.Summing(order.number, *piece))
        self.say(messages.store.Summed(order.number, None))

    def _named(self, area: int) -> tuple[int, int] | None:
        """The worker and the step whose update lies there, all of it. None: it has been dropped."""
        memory, place = self._memory, self._memory.area(area)
        for worker, step in self._contents.pushed():
            if memory.read(place) == (content := self._contents.update(worker, step)):
                memory.check(place, content, self.what, f"step {step} of worker {worker}")
                return worker, step
        return None

    def _reads(self, order: messages.store.Commit) -> None:
        """Look at all that its range is made of. The head's has all buffers, too."""
        memory, contents, what = self._memory, self._contents, f"{self.what}, at version {order.version},"
        source = memory.slot(order.source)
        memory.check(source, contents.version(self.made), what, f"version {self.made}", self.range)
        made_of = contents.summands(order.version)
        weights = [weight for _, weight in order.pushed]
        if weights != [weight for _, _, weight in made_of]:
            raise Wrong(f"{what} has weights {weights} of {made_of}")
        for (name, content, _), (area, _) in zip(made_of, order.pushed, strict=True):
            for within in (self.range, (SLOT, SLOT + FLAGS)):
                memory.check(memory.area(area), content, what, name, within)
        if self._heads:
            single = [area for area, _ in order.pushed if area < memory.owned]
            buffers = {memory.read_from(memory.area(area), SLOT + FLAGS) for area in (*single, *order.summed)}
            expected = {
                filled(contents.update(worker, step), AREA)[SLOT + FLAGS :]
                for worker, step, _ in contents.made_of(order.version)
            }
            if buffers != expected:
                raise Wrong(f"{what} has the buffers {buffers} and not {expected}")

    def _loads(self, file: int) -> None:
        """Begin with what the head's store has passed on, and with the version that is here."""
        memory = self._memory
        if (whole := os.pread(file, 100, 0)) != WHOLE:
            raise Wrong(f"{self.what} is to begin with {whole!r}")
        if not self.made:  # else a switch brings it
            memory.check(memory.slot(0), self._contents.version(0), self.what, "version 0")
        memory.check(memory.fixed(), self._contents.fixed, self.what, "what never moves")

    def _takes_range(self, order: messages.store.ExtendRange, file: int) -> None:
        """Make the range beside its own as well, with what another store had for it."""
        (begin, end), found = self.range, os.pread(file, 100, 0)
        if found != share(order.begin, order.end, self.made):
            raise Wrong(f"{self.what} takes over bytes {order.begin} to {order.end} with {found!r}")
        if begin < end and order.end != begin and order.begin != end:
            raise Wrong(f"{self.what} makes bytes {begin} to {end}, and takes over {order.begin} to {order.end}")
        self.range = (min(begin, order.begin), max(end, order.end)) if begin < end else (order.begin, order.end)

    def _takes_share(self, number: int, file: int) -> None:
        """Send the state once all shares are here, which are to be of one version."""
        gathering = self._gatherings[number]
        gathering.came.append(os.pread(file, 100, 0))
        gathering.lacking -= 1
        if not gathering.lacking:
            if not gathering.whole:
                raise Wrong(f"{self.what} gets {gathering.came} for the state of version {gathering.version}")
            del self._gatherings[number]
            self._says_with(messages.store.StateReady(gathering.worker, None), STATE)

    def _says_with(self, message: messages.Message, content: bytes) -> None:
        """Say this, with that along."""
        if self.status is None:
            file = attachment(content)
            self.say(message, (file,))
            os.close(file)

    def _records_mean(self, order: messages.store.RecordMean) -> Course:
        memory, replicas = self._memory, self.replicas
        assert replicas is not None
        cut, content = replicas.cuts[order.version], replicas.recorded(order.version)
        places, target = [memory.area(source) for source in order.sources], memory.area(order.target)
        if len(cut) != len(places) or target in places:
            raise Wrong(f"{self.what} is to make the mean of {len(cut)} replicas by {order}")
        for made in (TORN, content):
            for place, replica in zip(places, cut, strict=True):
                for within in (PARAMETERS, BUFFERS):
                    memory.check(place, replica, self.what, f"a replica of mean {order.version}", within)
            memory.write(target, made)
            if made == TORN:
                yield self.takes(self._seconds)
        Path(order.file).write_bytes(content)
        self.say(messages.store.MeanRecorded(order.version, sha256(content).hexdigest(), 0.0))

    def _records(self, order: messages.store.Record) -> None:
        memory, place = self._memory, self._memory.slot(order.slot)
        content, what = self._contents.version(order.version), f"version {order.version}"
        memory.check(place, content, f"{self.what}, which writes it,", what)

        def written() -> None:
            if self.status is None:
                memory.check(place, content, f"{self.what}, which has written it,", what)
                Path(order.file).write_bytes(content)
                self.say(messages.store.VersionRecorded(order.version, sha256(content).hexdigest()))

        self._scheduler.after(self.takes(self._seconds), written)
