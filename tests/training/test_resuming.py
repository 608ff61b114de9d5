"""A script that goes on from any snapshot ends on the bits of one that was not interrupted. The run is scripted."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import active_children
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import paceline
from paceline.codecs import Codec
from paceline.core.leases import Batch
from paceline.core.machine import Outer, Pushes, State
from paceline.errors import ConfigError, Interrupted
from paceline.ipc.endpoint import Message
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import (
    Begin,
    Compute,
    Declined,
    EpochOver,
    EpochsOver,
    GivenBack,
    Keep,
    Kept,
    Leased,
    MakeStep,
    StepFinished,
    Stepped,
)
from paceline.store.snapshots import OfWorker
from paceline.training import prepare as prepare_module
from paceline.training.data.orders import Orders
from paceline.training.link import Offer, ResumedWorker, Started, Switched
from paceline.training.packing import unpacked
from paceline.training.seeding import seed_script
from support.stores import same
from support.suites import each

SEED, EPOCHS, BATCHES = 3, 4, 5


def unpack(data: bytes) -> OfWorker:
    """What a worker has packed."""
    return OfWorker(**unpacked(data))


@dataclass
class Snapshot:
    """What a run would write down."""

    step: int
    version: int
    used: dict[int, int]
    """Batches of each epoch that are in a step."""
    folder: Path
    packing: bytes = b""
    after: int = -1
    """The step that the script was after when it packed."""

    @property
    def epoch(self) -> int:
        return next(epoch for epoch in range(EPOCHS + 1) if self.used.get(epoch, 0) < BATCHES)


HolderKind = Literal["window", "own-step", "replica"]


@dataclass
class OneWorker:
    """A run of one worker, in this process: its store makes each version at once. A snapshot is taken of each."""

    folder: Path
    kind: HolderKind = "window"
    resume: Snapshot | None = None
    ends_at: int = 1000
    """The version after which the run ends."""
    interrupted: bool = False
    """Whether it ends with a Ctrl-C."""
    takes: bool = True
    worker: int = 0
    workers: int = 1
    seed: int = SEED
    rate_scale: float = 1.0
    codec: Codec | None = None
    pieces: int = 1
    wants_work: bool = False
    wants_metrics: bool = False
    epochs: int | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """The epochs that batches were asked of."""

    def heard_switches(self) -> list[Switched]:
        return []

    def start(self, offer: Offer) -> Started:
        replica = self.kind == "replica"
        slots, areas = (0, 4) if replica else (3, 1)
        its = offer.offered
        region = Region.create(slots * its.slot_bytes + areas * its.push_bytes + 2 * its.fixed_bytes)
        self.store = offer.make_store(
            region, slots, areas, 0, None if self.kind == "window" else Outer(), (0, its.cuts[-1])
        )
        self.version = self.step = self.place = 0
        self.area = 3 if replica else 0
        self.used: dict[int, int] = {}
        self.leased: dict[int, int] = {}
        self.orders: list[Any] = []
        self.open = 0
        resumed = None
        if self.resume is not None:
            self.version, self.step, self.used = self.resume.version, self.resume.step, dict(self.resume.used)
            self.leased = dict(self.used)
            self.place = 2
            self.store.restore(self.resume.folder / "store", None if replica else 2, {0: 0}, "mean")
            if replica:
                self.store.restore_replicas({0: self.resume.folder / "replica"}, {0: 2})
            kept = unpack(self.resume.packing)
            resumed = ResumedWorker(epoch=self.resume.epoch, buffers=2 if replica else 0, kept=kept)
        self.give()
        own = self.kind == "own-step"
        pushes: Pushes = "difference" if own else "gradient"
        state: State = "replicas" if replica else "store"
        begin = Begin(slots=slots, areas=areas, state=state, local_steps=own, pushes=pushes, place=self.place)
        return Started(region=region, begin=begin, resumed=resumed)

    def give(self) -> None:
        """The next step may begin, or the run is over."""
        if self.version >= self.ends_at:
            self.orders.append(None)
            return
        self.step += 1
        go = Compute(step=self.step, version=self.version, slot=self.place, area=self.area, ahead=())
        self.orders.append(go)

    def say(self, message: Message, packing: bytes = b"") -> None:
        match message:
            case StepFinished():
                self.finished(message)
            case Kept():
                self.kept(message, packing)
            case Stepped():
                assert message.not_finite is None
            case GivenBack():
                for epoch, index in message.batches:
                    self.leased[epoch] = min(self.leased[epoch], index)
            case _:
                assert isinstance(message, Declined | EpochsOver)

    def finished(self, finished: StepFinished) -> None:
        for epoch, index in (*(finished.batches or ()), *finished.skipped):
            self.used[epoch] = max(self.used.get(epoch, 0), index + 1)
        if finished.scalars is not None and self.kind == "window":
            self.store.set_scalars(finished.scalars)
        self.version += 1
        if self.kind == "replica":
            self.orders.append(MakeStep(step=self.step, source=self.place, target=self.place, gradients=None))
        else:
            source, self.place = self.place, (self.place + 1) % 3
            self.store.commit(source, self.place, [(0, 1.0)])
        if self.takes:
            epoch = Snapshot(0, 0, self.used, self.folder).epoch
            self.orders.append(Keep(snapshot=self.version, step=self.step, epoch=epoch))
        self.give()

    def released(self) -> Any:
        order = self.orders.pop(0) if self.orders else None
        if isinstance(order, Keep):
            self.take(order)
        return order

    def take(self, order: Keep) -> None:
        self.open += 1
        folder = self.folder / str(order.snapshot)
        folder.mkdir()
        replica = self.kind == "replica"
        self.store.keep(self.store.begin_keeping(), None if replica else self.place, folder / "store")
        if replica:
            self.store.keep_replica(self.place, folder / "replica")
        self.snapshots.append(Snapshot(order.step, order.snapshot, dict(self.used), folder))

    def heard_to_keep(self) -> list[Keep]:
        return []

    def kept(self, kept: Kept, packing: bytes) -> None:
        self.open -= 1
        assert kept.error is None
        (snapshot,) = (one for one in self.snapshots if one.version == kept.snapshot)
        assert not snapshot.packing
        snapshot.packing, snapshot.after = b"".join(packing), kept.step
        assert kept.epoch == snapshot.epoch

    def lease(
        self,
        epoch: int,
        orders: Orders,
        ahead: int = 0,
        most: int = 1,
        begins: Batch | None = None,
        *,
        joins: bool = False,
    ) -> Leased | EpochOver:
        self.asked.append(epoch)
        assert len(orders.block(epoch, 0).order) == BATCHES
        index = self.leased.get(epoch, 0)
        if index == BATCHES or epoch >= EPOCHS:
            return EpochOver()
        self.leased[epoch] = index + 1
        return Leased(epoch, index)

    def raise_if_interrupted(self) -> None:
        if self.interrupted and self.version >= self.ends_at and not self.open:
            self.interrupted = False
            raise Interrupted

    def remark(self, line: str) -> None:
        self.said.append(line)

    def refuse(self, message: str) -> None:
        self.refused.append(message)

    def stretch(self, step: int, measured: float, batches: float = 1) -> None:
        return None

    def snapshot(self, *, hold: bool) -> int:
        return self.place

    was_stopped = False

    def finish(self) -> tuple[None, int]:
        return None, 0

    def begin_to_average(self, groups: Any) -> None: ...


# --- the script


class Noisy(TensorDataset):
    """Its samples are augmented."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


class Chains(DataLoader[Any]):
    """Each iteration makes several passes over the data."""

    passes = 1

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.passes):
            yield from super().__iter__()


LOOPS: dict[str, Callable[[int], Iterable[int]]] = {"epochs()": lambda number: paceline.epochs(number), "range": range}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@dataclass
class Script:
    """A training script, and the habits that it has."""

    optimizer: str = "SGD"
    loop: str = "epochs()"
    keeps: bool = True
    processes: int = 0
    persistent: bool = False
    leaves: bool = False
    """Whether it leaves each loop after a step."""
    passes: int = 1
    """How many passes over the data each of its loops makes."""
    announces: bool = False
    """Whether it tells `prepare` how many loops it makes."""
    before: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda model, optimizer: None
    """What it does between `prepare` and its loop."""
    begun: list[int] = field(default_factory=list)
    """Epochs that its loop was begun with."""

    def run(self, link: OneWorker) -> dict[str, Any]:
        """Run it. Return all that training comes to."""
        prepare_module.attach(link)  # type: ignore[arg-type]
        seed_script(SEED)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 2))
        optimizer = OPTIMIZERS[self.optimizer](model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        each_step = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=EPOCHS * BATCHES, cycle_momentum=False
        )
        ema = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        data = Noisy(torch.randn(BATCHES * 4, 4), torch.randn(BATCHES * 4, 2))
        loader: Any = (DataLoader if self.passes == 1 else Chains)(
            data, batch_size=4, shuffle=True, num_workers=self.processes, persistent_workers=self.persistent
        )
        loader.passes, loops = self.passes, max(1, EPOCHS // self.passes)
        keep = {"each_step": each_step, "scheduler": scheduler, "ema": ema} if self.keeps else {}
        model, optimizer, loader = paceline.prepare(
            model, optimizer, loader, keep=keep, epochs=loops if self.announces else None
        )
        self.before(model, optimizer)
        for epoch in LOOPS[self.loop](loops):
            self.begun.append(epoch)
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if self.keeps:
                    each_step.step()
                ema.update_parameters(model)
                if self.leaves:
                    break
            scheduler.step()
        paceline.finish()
        prepare_module.script_ended()  # as the runtime does after the script's end
        found = {"parameters": [p.detach().clone() for p in model.parameters()], "rates": scheduler.get_last_lr()}
        found |= {"buffers": [b.clone() for b in model.buffers()]}
        if self.keeps:
            found |= {"scheduler": scheduler.state_dict(), "each_step": each_step.state_dict()}
            found |= {"ema": copy.deepcopy(ema.state_dict())}
        return found


@pytest.fixture(autouse=True)
def _alone_again() -> Iterator[None]:
    yield
    prepare_module.ScriptProcess.link = prepare_module.ScriptProcess.session = None
    prepare_module.ScriptProcess.prepared = False


# --- bits


CASES = list(product(["window", "own-step", "replica"], OPTIMIZERS, LOOPS))


@pytest.mark.parametrize(("kind", "optimizer", "loop"), each(CASES, default=CASES[::5]))
def test_a_script_that_goes_on_from_any_snapshot_ends_as_one_that_was_not_interrupted(
    kind: HolderKind, optimizer: str, loop: str, tmp_path: Path
) -> None:
    whole = OneWorker(tmp_path, kind)
    expected = Script(optimizer, loop).run(whole)
    assert [one.after for one in whole.snapshots] == [one.step for one in whole.snapshots] == [*range(1, 21)]
    for snapshot in (whole.snapshots[version - 1] for version in (1, 5, 6, 13, 19, 20)):
        run = OneWorker(tmp_path, kind, resume=snapshot, takes=False)
        found = Script(optimizer, loop).run(run)
        assert same(found, expected), snapshot
        assert run.version == EPOCHS * BATCHES


@pytest.mark.parametrize("loop", LOOPS)
def test_a_script_whose_loops_make_two_passes_each_ends_after_its_loops_and_goes_on_from_any_snapshot(
    loop: str, tmp_path: Path
) -> None:
    whole, script = OneWorker(tmp_path), Script(loop=loop, passes=2, announces=True)
    expected = script.run(whole)
    assert (whole.version, script.begun) == (EPOCHS * BATCHES, [0, 1])
    for version, begun in ((3, 0), (5, 0), (8, 0), (10, 1), (13, 1), (15, 1), (20, 2)):
        script = Script(loop=loop, passes=2, announces=True)
        run = OneWorker(tmp_path, resume=whole.snapshots[version - 1], takes=False)
        assert same(script.run(run), expected), version
        assert run.version == EPOCHS * BATCHES
        assert script.begun == [*range(begun if loop == "epochs()" else 0, 2)]
        past = begun if loop == "range" else 0
        assert [line.split(", as")[0] for line in run.said] == [f"goes on in epoch {begun}"] * bool(past)


def test_a_class_that_chains_passes_without_an_end_ends_after_as_many_as_were_announced(tmp_path: Path) -> None:
    run = OneWorker(tmp_path, epochs=2, takes=False)
    Script(loop="range", passes=10**6).run(run)
    assert run.version == 2 * BATCHES


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_processes_go_on_too(persistent: bool, tmp_path: Path) -> None:
    script = Script(processes=1, persistent=persistent, loop="range")
    whole = OneWorker(tmp_path)
    expected = script.run(whole)
    snapshot = whole.snapshots[12]
    assert same(script.run(OneWorker(tmp_path, resume=snapshot, takes=False)), expected)


@pytest.mark.parametrize("leaves", [False, True], ids=["its loops end", "it leaves its loops"])
def test_processes_of_a_loader_end_as_the_script_is_done_with_it(leaves: bool, tmp_path: Path) -> None:
    """Without a look for garbage, at which torch would lose the means to tell them."""
    gc.collect()
    before = set(active_children())
    gc.disable()
    try:
        Script(processes=1, persistent=True, leaves=leaves).run(OneWorker(tmp_path, takes=False))
        assert set(active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.long
def test_per_epoch_code_catches_up_in_past_loops_where_nothing_is_kept(tmp_path: Path) -> None:
    whole = OneWorker(tmp_path)
    expected = Script(keeps=False, loop="range").run(whole)
    run = OneWorker(tmp_path, resume=whole.snapshots[11], takes=False)
    assert same(Script(keeps=False, loop="range").run(run), expected)


# --- when a script packs


@pytest.mark.parametrize("ends_at", [7, 10, 20])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_ctrl_c_waits_until_what_is_kept_is_packed(loop: str, ends_at: int, tmp_path: Path) -> None:
    """In the midst of an epoch, after an epoch's last step, and after the last of all."""
    expected = Script(loop=loop).run(OneWorker(tmp_path / "whole", takes=False))
    (tmp_path / "cut").mkdir()
    cut = OneWorker(tmp_path / "cut", ends_at=ends_at, interrupted=True)
    with pytest.raises(Interrupted):
        Script(loop=loop).run(cut)
    run = OneWorker(tmp_path, resume=cut.snapshots[-1], takes=False)
    assert same(Script(loop=loop).run(run), expected)


class Beside(OneWorker):
    """The order to keep comes a step late: while the worker computes the next one."""

    def released(self) -> Any:
        order = super().released()
        if isinstance(order, Keep):
            self.late = [order]
            return super().released()
        return order

    def heard_to_keep(self) -> list[Keep]:
        late, self.late = getattr(self, "late", []), []
        return late


def test_an_optimizer_that_steps_here_is_packed_before_the_step_in_which_the_order_comes(tmp_path: Path) -> None:
    on_time, late = OneWorker(tmp_path / "a", "own-step"), Beside(tmp_path / "b", "own-step")
    for run in (on_time, late):
        run.folder.mkdir()
        Script().run(run)
    for one, other in zip(on_time.snapshots[:-1], late.snapshots[:-1], strict=True):
        assert (other.after, other.step) == (one.after, one.step)
        assert same(unpack(other.packing).state, unpack(one.packing).state)


class Without(OneWorker):
    """A run of a script that has no loader."""

    def start(self, offer: Offer) -> Started:
        self.used = {0: 0}
        return super().start(offer)


def begun_without_loader(link: OneWorker) -> tuple[Any, Any, Any]:
    """A model, an optimizer and a scheduler of a script that has prepared them."""
    prepare_module.attach(link)  # type: ignore[arg-type]
    seed_script(SEED)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    paceline.prepare(model, optimizer, keep={"scheduler": scheduler})
    return model, optimizer, scheduler


def without_loader(link: OneWorker, steps: int) -> tuple[list[int], list[float]]:
    """Make so many steps. Return the scheduler's count after each, and the parameter in the end."""
    model, optimizer, scheduler = begun_without_loader(link)
    counts = []
    for _ in range(steps):
        model(torch.randn(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        counts.append(scheduler.last_epoch)
    prepare_module.script_ended()
    return counts, model.weight.flatten().tolist()


def test_a_script_without_a_loader_packs_at_its_next_gradient(tmp_path: Path) -> None:
    whole = Without(tmp_path)
    counts, weight = without_loader(whole, 6)
    assert [unpack(one.packing).kept["scheduler"]["last_epoch"] for one in whole.snapshots] == counts == [*range(1, 7)]
    run = Without(tmp_path, resume=whole.snapshots[2], takes=False)
    assert without_loader(run, 3) == ([4, 5, 6], weight)


# --- what a script is told, and what it can't have


PAST = (
    "goes on in epoch 2, as every worker does: its loops over epochs 0 to 1 are empty, and what it does once an epoch "
    "is done again (`for epoch in paceline.epochs(N)` begins at epoch 2)"
)
NAMED = '; the optimizer\'s ExponentialLR is not in prepare(..., keep={"scheduler": ...}), so it has no steps'
ANEW = ", and the optimizer's ExponentialLR begins anew: it is not in prepare(..., keep="


@pytest.mark.parametrize(
    ("loop", "keeps", "version", "begun", "said"),
    [
        ("range", True, 12, [0, 1, 2, 3], PAST),
        ("epochs()", True, 12, [2, 3], None),
        ("range", False, 12, [0, 1, 2, 3], NAMED),
        ("epochs()", False, 12, [2, 3], ANEW),
        ("range", False, 3, [0, 1, 2, 3], None),
        ("epochs()", False, 3, [0, 1, 2, 3], None),
    ],
)
def test_past_loops_ask_for_no_batch_and_one_line_tells_of_them_and_of_a_scheduler_that_is_not_kept(
    loop: str, keeps: bool, version: int, begun: list[int], said: str | None, tmp_path: Path
) -> None:
    whole = OneWorker(tmp_path)
    Script(keeps=keeps).run(whole)
    script, run = Script(keeps=keeps, loop=loop), OneWorker(tmp_path, resume=whole.snapshots[version - 1], takes=False)
    script.run(run)
    assert script.begun == begun
    assert min(run.asked) == (2 if version == 12 else 0)
    assert len(run.said) == (said is not None)
    assert said is None or said in run.said[0]


def spoil(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a script does that begins with a checkpoint of its own."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.fill_(7.0)
    next(model.parameters()).data = torch.ones(6, 4)
    if not paceline.resumed():
        return
    plain = torch.optim.SGD([torch.ones(1, requires_grad=True) for _ in model.parameters()], lr=0.1, momentum=0.9)
    plain.load_state_dict({**plain.state_dict(), "state": {0: {"momentum_buffer": torch.ones(6, 4)}}})
    state = {**optimizer.state_dict(), "state": plain.state_dict()["state"]}
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("kind", ["own-step", "replica"])
def test_what_a_script_changes_before_its_first_batch_is_discarded(kind: HolderKind, tmp_path: Path) -> None:
    whole = OneWorker(tmp_path, kind)
    expected = Script().run(whole)
    run = OneWorker(tmp_path, kind, resume=whole.snapshots[6], takes=False)
    assert same(Script(before=spoil).run(run), expected)


def test_a_script_without_a_loader_that_changes_what_it_goes_on_with_is_refused(tmp_path: Path) -> None:
    whole = Without(tmp_path)
    without_loader(whole, 2)
    run = Without(tmp_path, resume=whole.snapshots[0], takes=False)
    model, optimizer, _ = begun_without_loader(run)
    assert paceline.resumed()
    model.weight.data.zero_()
    model(torch.ones(3, 2)).sum().backward()
    with pytest.raises(ConfigError, match='changed the parameter "weight" before its first step, and the run goes on'):
        optimizer.step()
    assert len(run.refused) == 1


class Thing:
    """A kept object of the user's own."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RuntimeError("size\n\tmismatch")


def prepared(link: OneWorker | None, keep: Any) -> None:
    if link is not None:
        prepare_module.attach(link)  # type: ignore[arg-type]
    model = nn.Linear(2, 1)
    paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), keep=keep)


def test_a_kept_object_that_can_t_be_loaded_is_named_in_one_line(tmp_path: Path) -> None:
    whole = Without(tmp_path)
    prepared(whole, {"meter": Thing(count=1)})
    snapshot = Snapshot(0, 0, {}, tmp_path)
    whole.store.keep(whole.store.begin_keeping(), 0, tmp_path / "store")
    session = prepare_module.ScriptProcess.session
    assert session is not None
    snapshot.packing = b"".join(session.snapshots._kept.packing(None)[0])
    run = Without(tmp_path, resume=snapshot)
    with pytest.raises(ConfigError):
        prepared(run, {"meter": Thing(count=1)})
    assert run.refused == ['the kept object "meter" can\'t be loaded from the snapshot: RuntimeError: size mismatch']
    run = Without(tmp_path, resume=snapshot)
    with pytest.raises(ConfigError):
        prepared(run, {"other": Thing()})
    assert run.refused == ['the script keeps "other", and the snapshot has "meter"; keep the same to go on']


class Asks(Thing):
    """Asks, as it is loaded, what a script asks after `prepare`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(count=1)
        self.model = model
        self.resumed = False
        self.weight = torch.empty(0)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed, self.weight = paceline.resumed(), self.model.state_dict()["weight"]


def test_a_kept_object_is_loaded_in_a_script_that_takes_part_in_the_run(tmp_path: Path) -> None:
    whole = Without(tmp_path)
    without_loader(whole, 2)
    prepare_module.attach(Without(tmp_path, resume=whole.snapshots[0], takes=False))  # type: ignore[arg-type]
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    asks = Asks(model)
    paceline.prepare(model, optimizer, keep={"scheduler": asks})
    assert asks.resumed
    assert torch.equal(asks.weight, model.weight)
    assert asks.weight.data_ptr() != model.weight.data_ptr(), "versions that come later would be in it"


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ([1], "prepare() got a list as keep; it must be a dict"),
        ({"a b": Thing()}, "prepare() got keep={'a b': ...}; a name must be an identifier"),
        ({1: Thing()}, "prepare() got keep={1: ...}; a name must be an identifier"),
        ({"loss": nn.functional.mse_loss}, 'prepare() got keep={"loss": ...}, a function, which has no state_dict()'),
    ],
)
def test_what_can_t_be_kept_is_refused_by_name_alone_as_well(keep: Any, said: str, tmp_path: Path) -> None:
    run = Without(tmp_path)
    for link in (None, run):
        with pytest.raises(ConfigError) as refused:
            prepared(link, keep)
        assert str(refused.value).startswith(said)
    assert run.refused == [str(refused.value)]


def test_a_state_that_can_t_be_packed_is_refused_before_training_and_alone_it_is_never_asked_for(
    tmp_path: Path,
) -> None:
    keep = {"meter": Thing(sum=print)}
    prepared(None, keep)
    run = Without(tmp_path)
    with pytest.raises(ConfigError):
        prepared(run, keep)
    (line,) = run.refused
    assert line.startswith('the kept object "meter" has "sum", a builtin_function_or_method; only tensors')


def test_the_model_and_the_optimizer_are_kept_in_any_case() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for one in (model, optimizer):
        with pytest.raises(ConfigError, match="with what it keeps in any case; leave that out"):
            paceline.prepare(model, optimizer, keep={"it": one})


def test_alone_epochs_are_a_range_and_nothing_is_resumed() -> None:
    assert [*paceline.epochs(3)] == [0, 1, 2]
    assert paceline.resumed() is False


def test_epochs_tell_how_many_there_are_and_the_command_line_wins(tmp_path: Path) -> None:
    for asked, wanted in ((None, 4), (2, 2)):
        script, run = Script(), OneWorker(tmp_path, takes=False, epochs=asked)
        script.run(run)
        session = prepare_module.ScriptProcess.session
        assert session is not None
        assert (script.begun, session.loops.planned) == ([*range(wanted)], wanted)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randn(8, 4))


def test_a_stream_begins_its_epoch_anew_and_says_so_once(tmp_path: Path) -> None:
    def run(link: OneWorker) -> list[int]:
        prepare_module.attach(link)  # type: ignore[arg-type]
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(Stream(), batch_size=4))
        seen = []
        for epoch in range(3):
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append(epoch)
        prepare_module.script_ended()
        return seen

    class Streaming(OneWorker):
        def kept(self, kept: Kept, packing: bytes) -> None:
            self.snapshots[-1].used = dict.fromkeys(range(kept.epoch), BATCHES)
            super().kept(kept, packing)

    whole = Streaming(tmp_path)
    assert run(whole) == [0, 0, 1, 1, 2, 2]
    again = OneWorker(tmp_path, resume=whole.snapshots[2], takes=False)
    assert run(again) == [1, 1, 2, 2]
    assert again.said[0] == "begins its stream anew, as every worker does: an IterableDataset can't be wound forward"
