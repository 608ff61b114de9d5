"""A script that goes on from any snapshot ends on the bits of one that was not interrupted. The run is scripted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.core.leases import Batch
from paceline.errors import ConfigError, Interrupted
from paceline.fabric.memory import Region
from paceline.training import prepare as prepare_module
from paceline.training.holders.choice import HolderKind
from paceline.training.link import Finished, Go, Keep, Offer, Resumed, Started, Step
from paceline.training.orders import Orders
from paceline.training.seeding import seed_script
from paceline.training.snapshots import unpack

SEED, EPOCHS, BATCHES = 3, 4, 5


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
    wants_work: bool = False
    wants_metrics: bool = False
    epochs: int | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """The epochs that batches were asked of."""

    def start(self, offer: Offer) -> Started:
        replica = self.kind == "replica"
        slots, areas = (0, 4) if replica else (3, 1)
        layout = offer.layout
        region = Region.create(slots * layout.slot_bytes + areas * layout.push_bytes + 2 * layout.fixed_bytes)
        self.store = offer.make_store(region, slots, areas, self.kind == "window")
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
            resumed = Resumed(epoch=self.resume.epoch, buffers=2 if replica else 0, kept=kept)
        self.give()
        return Started(
            region=region, slots=slots, areas=areas, holder=self.kind, pushes="updates" if self.kind == "own-step"
            else "gradients", place=self.place, resumed=resumed,
        )  # fmt: skip

    def give(self) -> None:
        """The next step may begin, or the run is over."""
        if self.version >= self.ends_at:
            self.orders.append(None)
            return
        self.step += 1
        go = Go(step=self.step, version=self.version, slot=self.place, area=self.area, ahead=())
        self.orders.append(go)

    def pushed(self, finished: Finished) -> None:
        for batch in (*(finished.batches or ()), *finished.skipped):
            self.used[batch.epoch] = max(self.used.get(batch.epoch, 0), batch.index + 1)
        if finished.scalars is not None and self.kind == "window":
            self.store.set_scalars(finished.scalars)
        self.version += 1
        if self.kind == "replica":
            self.orders.append(Step(step=self.step, source=self.place, target=self.place, gradients=None))
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

    def kept(self, order: Keep, step: int, epoch: int, packing: bytes | ConfigError) -> None:
        self.open -= 1
        assert isinstance(packing, bytes), packing
        (snapshot,) = (one for one in self.snapshots if one.version == order.snapshot)
        assert not snapshot.packing
        snapshot.packing, snapshot.after = packing, step
        assert epoch == snapshot.epoch

    def stepped(self, step: int, not_finite: str | None) -> None:
        assert not_finite is None

    def lease(self, epoch: int, orders: Orders) -> Batch | None:
        self.asked.append(epoch)
        assert len(orders.block(epoch, 0).order) == BATCHES
        index = self.leased.get(epoch, 0)
        if index == BATCHES or epoch >= EPOCHS:
            return None
        self.leased[epoch] = index + 1
        return Batch(epoch, index)

    def give_back(self, batches: tuple[Batch, ...]) -> None:
        for batch in batches:
            self.leased[batch.epoch] = min(self.leased[batch.epoch], batch.index)

    def raise_if_interrupted(self) -> None:
        if self.interrupted and self.version >= self.ends_at and not self.open:
            self.interrupted = False
            raise Interrupted

    def remark(self, line: str) -> None:
        self.said.append(line)

    def refuse(self, message: str) -> None:
        self.refused.append(message)

    def stretched(self, step: int, measured: float) -> float:
        return measured

    def hold(self) -> int:
        return self.place

    def done_computing(self) -> None: ...
    def finish(self) -> None: ...
    def epochs_are_over(self) -> None: ...
    def begin_to_average(self, groups: Any) -> None: ...


# --- the script


class Noisy(TensorDataset):
    """Its samples are augmented."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


def through_range(run: Any) -> Iterator[int]:
    yield from range(EPOCHS)


LOOPS: dict[str, Callable[[Any], Iterator[int]]] = {
    "epochs()": lambda run: paceline.epochs(EPOCHS),
    "range": through_range,
}
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
        loader = DataLoader(
            data, batch_size=4, shuffle=True, num_workers=self.processes, persistent_workers=self.persistent
        )
        keep = {"each_step": each_step, "scheduler": scheduler, "ema": ema} if self.keeps else {}
        model, optimizer, loader = paceline.prepare(model, optimizer, loader, keep=keep)
        self.before(model, optimizer)
        for epoch in LOOPS[self.loop](link):
            self.begun.append(epoch)
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if self.keeps:
                    each_step.step()
                ema.update_parameters(model)
            scheduler.step()
        paceline.finish()
        prepare_module.keep([])  # as the runtime does after the script's end
        found = {"parameters": [p.detach().clone() for p in model.parameters()], "rates": scheduler.get_last_lr()}
        found |= {"buffers": [b.clone() for b in model.buffers()]}
        if self.keeps:
            found |= {"scheduler": scheduler.state_dict(), "each_step": each_step.state_dict()}
            found |= {"ema": copy.deepcopy(ema.state_dict())}
        return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.fixture(autouse=True)
def _alone_again() -> Iterator[None]:
    yield
    prepare_module._Process.link = prepare_module._Process.session = None
    prepare_module._Process.prepared = False


# --- bits


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["window", "own-step", "replica"])
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


def test_snapshots_change_no_bit_of_the_run_that_takes_them(tmp_path: Path) -> None:
    assert same(Script().run(OneWorker(tmp_path)), Script().run(OneWorker(tmp_path, takes=False)))


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_processes_go_on_too(persistent: bool, tmp_path: Path) -> None:
    script = Script(processes=1, persistent=persistent, loop="range")
    whole = OneWorker(tmp_path)
    expected = script.run(whole)
    snapshot = whole.snapshots[12]
    assert same(script.run(OneWorker(tmp_path, resume=snapshot, takes=False)), expected)


def test_per_epoch_code_catches_up_in_past_loops_where_nothing_is_kept(tmp_path: Path) -> None:
    whole = OneWorker(tmp_path)
    expected = Script(keeps=False, loop="range").run(whole)
    run = OneWorker(tmp_path, resume=whole.snapshots[11], takes=False)
    assert same(Script(keeps=False, loop="range").run(run), expected)
