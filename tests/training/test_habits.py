"""What people do in training loops has the effect that it has in plain PyTorch: real runs against the same functions
in this process. Where floating-point numbers are compared, every bit is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.orders import epoch_order
from support.runs import Run, run, side_by_side
from support.scripts import functions_of, script

SEED = 5
ONE = ("-n", "1", "-p", "asp")
FLAGS = ("--threads", "1", "--seed", str(SEED), "--record", "0")

PARTS = script("""
HABITS = {}

def habit(function):
    HABITS[function.__name__] = function
    return function

def train(model, optimizer, *loader):
    before_the_first_step(model)
    seen = {}
    for name, function in HABITS.items():
        try:
            seen[name] = function(model, model[name], optimizer, *loader)
        except Exception:
            seen[name] = traceback.format_exc()
        optimizer.zero_grad()
    return seen

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, first=True):
        hidden = torch.tanh(self.first(x))
        return self.second(hidden if first else hidden.detach())
""")

SAVES = """
if __name__ == "__main__":
    torch.save(train(*paceline.prepare(*build())), sys.argv[1])
"""

# --- one worker, no loader: each habit trains a part of the model that is its own -----------------------

LOOPS = (
    PARTS
    + """
STEPS = 10

def loss_of(part, step, first=True):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return (part(x, first) - x[:, :3].cos()).square().mean()

def build():
    torch.manual_seed(1)
    model = nn.ModuleDict({name: Part() for name in HABITS})
    model["big"] = nn.Linear(500, 500)
    model["thawed"].first.requires_grad_(False)
    groups = [{"params": list(model[name].parameters())} for name in model]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)
    return model, optimizer

def before_the_first_step(model):
    model["filled"].first.weight.data.fill_(0.25)
    with torch.no_grad():
        model["filled"].second.weight.mul_(3)
        model["filled"].second.bias.copy_(torch.arange(3.0))
    values = model["loaded"].state_dict()
    model["loaded"].load_state_dict({name: value / 2 + 1 for name, value in values.items()})

def one_step(part, optimizer, step=0, first=True, changed=lambda part: None):
    optimizer.zero_grad()
    loss = loss_of(part, step, first)
    loss.backward()
    changed(part)
    optimizer.step()
    return loss.item()

def plain_loop(part, optimizer, **given):
    return [one_step(part, optimizer, step, **given) for step in range(STEPS)]

@habit
def filled(model, part, optimizer):
    return plain_loop(part, optimizer, first=False)  # so the first layer stays as it was filled

@habit
def loaded(model, part, optimizer):
    return plain_loop(part, optimizer)

@habit
def frozen_midway(model, part, optimizer):
    losses = []
    for frozen in (False, True, False):
        part.first.requires_grad_(not frozen)
        losses += plain_loop(part, optimizer)
    return losses

@habit
def thawed(model, part, optimizer):
    losses = plain_loop(part, optimizer)
    part.first.requires_grad_(True)
    return losses + plain_loop(part, optimizer)

@habit
def rate_set_by_hand(model, part, optimizer):
    before = [group["lr"] for group in optimizer.param_groups]
    losses = plain_loop(part, optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
        group["momentum"] = 0.7
    losses += plain_loop(part, optimizer)
    for group, rate in zip(optimizer.param_groups, before):
        group["lr"], group["momentum"] = rate, 0.9
    return losses

@habit
def clipped_by_norm(model, part, optimizer):
    norms = []
    plain_loop(part, optimizer, changed=lambda _: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
    return norms

def zeroed_with(zero, part, optimizer):
    sizes = []
    for step in range(STEPS):
        loss_of(part, step, first=step % 3 == 0).backward()
        optimizer.step()
        zero()
        sizes.append([None if p.grad is None else p.grad.abs().sum() for p in part.parameters()])
    return sizes

@habit
def zeroed_to_none(model, part, optimizer):
    return zeroed_with(lambda: optimizer.zero_grad(set_to_none=True), part, optimizer)

@habit
def zeroed_in_place(model, part, optimizer):
    return zeroed_with(lambda: optimizer.zero_grad(set_to_none=False), part, optimizer)

@habit
def a_closure(model, part, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(part, step)
        loss.backward()
        return loss

    values = []
    for step in range(STEPS):
        values.append(optimizer.step(closure).detach())
    return values

@habit
def averaged_model(model, part, optimizer):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    of_all = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    of_part = AveragedModel(part)
    for step in range(STEPS):
        one_step(part, optimizer, step)
        of_all.update_parameters(model)
        of_part.update_parameters(part)
    return [of_part.state_dict(), of_all.module["averaged_model"].state_dict()]

@habit
def averages_swapped_in_to_evaluate(model, part, optimizer):
    averages = [parameter.detach().clone() for parameter in part.parameters()]
    evaluated = []
    for step in range(STEPS):
        one_step(part, optimizer, step)
        with torch.no_grad():
            for average, parameter in zip(averages, part.parameters()):
                average.lerp_(parameter, 0.1)
            if step % 4 == 1:
                kept = [parameter.clone() for parameter in part.parameters()]
                for average, parameter in zip(averages, part.parameters()):
                    parameter.copy_(average)
                evaluated.append(loss_of(part, 1000).item())
                evaluated.append(model.state_dict()["averages_swapped_in_to_evaluate.first.weight"].clone())
                for own, parameter in zip(kept, part.parameters()):
                    parameter.data.copy_(own)
    return evaluated

@habit
def saved_sub_module(model, part, optimizer):
    plain_loop(part, optimizer)
    present = {name: parameter.detach().clone() for name, parameter in part.named_parameters()}
    states = [part.state_dict(), model.state_dict()["saved_sub_module.first.weight"], model.state_dict()]
    loaded = []
    for state, largest in zip(states, (6_000, 4_000, 1_200_000)):
        file = io.BytesIO()
        torch.save(state, file)
        assert file.tell() < largest, f"{file.tell()} bytes"
        file.seek(0)
        loaded.append(torch.load(file, weights_only=True))
    saved, single, whole = loaded
    of_whole = {name: whole[f"saved_sub_module.{name}"] for name in saved}
    return [saved, single, of_whole, present, plain_loop(part, optimizer)]

"""
    + SAVES
)

# --- one worker with a loader: each habit takes two epochs of it ----------------------------------------

LOADED = (
    PARTS
    + """

EPOCHS, BATCHES, SAMPLES = 2, 7, 26  # by 4: the last one of 2

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = Part(), nn.BatchNorm1d(3, momentum=0.3)

    def forward(self, x):
        return self.norm(self.inner(x))

def loss_of(part, x, y):
    return nn.functional.mse_loss(part(x), y)

def build():
    torch.manual_seed(2)
    model = nn.ModuleDict({name: Normed() if name == "batch_norm" else Part() for name in HABITS})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    data = TensorDataset(torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 3))
    loader = DataLoader(data, batch_size=4)
    return model, optimizer, loader

def before_the_first_step(model):
    pass

@habit
def accumulated(model, part, optimizer, loader):
    losses = []
    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = loss_of(part, x, y) / 2
            loss.backward()
            losses.append(loss.item())
            if len(losses) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return losses

@habit
def scaled(model, part, optimizer, loader):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    scales = []
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(part, x, y.bfloat16())
            if (epoch, number) == (1, 2):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(part.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    return scales

@habit
def batch_norm(model, part, optimizer, loader):
    for epoch in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(part, x, y).backward()
            optimizer.step()
    return [buffer.clone() for buffer in part.buffers()]

"""
    + SAVES
)

# --- one worker: checkpoints ----------------------------------------------------------------------------

CHECKPOINTS = script("""
STEPS = 8

def build(seed, rate=0.03):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": rate / 2}]
    optimizer = torch.optim.AdamW([*groups, {"params": model[1].parameters()}], lr=rate, amsgrad=True)
    return model, optimizer

def train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()

def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

def resume(model, optimizer, state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer, range(STEPS, 2 * STEPS))

if __name__ == "__main__":
    file, what = sys.argv[1:]
    if what == "save":
        model, optimizer = paceline.prepare(*build(3))
        begun = optimizer.state_dict()
        train(model, optimizer, range(STEPS))
        torch.save(state_of(model, optimizer) | {"begun": begun}, file)
        train(model, optimizer, range(STEPS, 2 * STEPS))
    else:
        resume(*paceline.prepare(*build(4, rate=0.5)), torch.load(file))
""")

# --- one worker: a scaler that leaves unscaling and skipping to the optimizer -----------------------------

FUSED = (
    script("""
def build():
    torch.manual_seed(10)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

def train(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scales = []
    for step in range(8):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(x) - x[:, :3].sin()).square().mean()
        scaler.scale(loss * float("inf") if step == 3 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales
""")
    + SAVES
)

# --- one worker: a loader with everything of the script's own ---------------------------------------------

LOADER = script("""
from torch.utils.data import Sampler, WeightedRandomSampler, default_collate, get_worker_info

EPOCHS, SAMPLES = 3, 30

class Rows(Dataset):
    offset = None  # what worker_init_fn opens, connects to, or sets

    def __len__(self):
        return SAMPLES

    def __getitem__(self, one):
        x = torch.full((4,), one / 10.0)
        return {"x": x + (0.0 if self.offset is None else self.offset), "one": one, "pid": os.getpid()}

class Buckets(Sampler):  # batches of unequal sizes
    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return 6

    def __iter__(self):
        ids = sorted(self.sampler, key=lambda one: -(one % 7))
        return iter([ids[:2], ids[2:8], ids[8:9], ids[9:15], ids[15:20], ids[20:]])

def collated(samples):
    return {**default_collate(samples), "sizes": [len(samples)]}

def started(number):
    assert number == get_worker_info().id
    get_worker_info().dataset.offset = 0.5

def build():
    torch.manual_seed(7)
    loader = DataLoader(
        Rows(),
        batch_sampler=Buckets(WeightedRandomSampler([1 + one % 3 for one in range(SAMPLES)], 27)),
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        collate_fn=collated,
        worker_init_fn=started,
    )
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), loader

def train(model, optimizer, loader):
    seen, pids = [], []
    for epoch in range(EPOCHS):
        for batch in loader:
            seen.append([batch["one"].tolist(), batch["sizes"], batch["x"]])
            pids.append(batch["pid"].tolist())
            optimizer.zero_grad()
            model(batch["x"]).square().mean().backward()
            optimizer.step()
    return {"seen": seen, "pids": pids}

if __name__ == "__main__":
    model, optimizer, loader = paceline.prepare(*build())
    torch.save(train(model, optimizer, loader) | {"pid": os.getpid(), "length": len(loader)}, sys.argv[1])
""")

# --- a stream -------------------------------------------------------------------------------------------


STREAM = script("""
class Stream(IterableDataset):
    def __iter__(self):
        me = paceline.worker()
        return iter(torch.arange(100.0 * me, 100.0 * me + 10 + 4 * me))

model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(Stream(), batch_size=2))
seen = []
for epoch in range(2):
    for x in loader:
        seen += x.tolist()
        optimizer.zero_grad()
        model(x.unsqueeze(1)).square().mean().backward()
        optimizer.step()
torch.save(seen, f"{sys.argv[1]}.{paceline.worker()}")
""")


same_bits = partial(torch.testing.assert_close, rtol=0.0, atol=0.0)

Runs = dict[str, Future[Run]]
ALONE = {"loops": LOOPS, "loaded": LOADED, "fused": FUSED, "loader": LOADER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Iterator[Runs]:
    """The runs that this module looks at, by name. What a script saves is in `folder`, under the same name."""
    twin = functions_of(CHECKPOINTS)
    model, optimizer = twin.build(3)
    twin.train(model, optimizer, range(twin.STEPS))
    torch.save(twin.state_of(model, optimizer), folder / "plain")

    def call(file: str, text: str, *flags: str, args: tuple[str, ...] = ()) -> partial[Run]:
        return partial(run, text, *(flags or ONE), *FLAGS, args=[str(folder / file), *args], tmp_path=folder)

    calls = {name: call(name, text) for name, text in ALONE.items()}
    calls["save"] = call("save", CHECKPOINTS, args=("save",))
    calls["resume"] = call("plain", CHECKPOINTS, args=("resume",))
    calls["stream"] = call("stream", STREAM, "-n", "2", "-p", "asp", "--saves", "all")
    with side_by_side(calls) as futures:
        yield futures


@dataclass
class Twins:
    """A run of one worker, and what the same functions did here."""

    ended: Run
    seen: dict[str, Any]
    """By habit, what it returned in the run."""
    plain_seen: dict[str, Any]
    model: nn.Module
    """As trained here."""
    begun: nn.Module

    def same(self, habit: str) -> Any:
        """The habit returned the same, and its part of the model ended with the same bits. Returns what it returned."""
        here, there = self.plain_seen[habit], self.seen[habit]
        assert not isinstance(here, str), here
        assert not isinstance(there, str), there
        same_bits(there, here)
        final, trained, begun = (
            {name: value for name, value in state.items() if name.startswith(f"{habit}.")}
            for state in (self.ended.final(), self.model.state_dict(), self.begun.state_dict())
        )
        same_bits(final, trained)
        assert any(not torch.equal(value, begun[name]) for name, value in final.items())
        return here


def _twins(name: str, runs: Runs, folder: Path) -> Twins:
    ended = runs[name].result().completed()
    twin = functions_of(ALONE[name])
    begun, model = twin.build()[0], twin.build()
    plain_seen = twin.train(*model)
    return Twins(ended, torch.load(folder / name), plain_seen, model[0], begun)


@pytest.fixture(scope="module")
def loops(runs: Runs, folder: Path) -> Twins:
    return _twins("loops", runs, folder)


@pytest.fixture(scope="module")
def loaded(runs: Runs, folder: Path) -> Twins:
    return _twins("loaded", runs, folder)


# --- without a loader -----------------------------------------------------------------------------------

HABITS = [
    "filled",
    "loaded",
    "frozen_midway",
    "thawed",
    "rate_set_by_hand",
    "clipped_by_norm",
    "a_closure",
    "averaged_model",
    "averages_swapped_in_to_evaluate",
]


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_of_a_training_loop_has_the_effect_that_it_has_in_plain_pytorch(habit: str, loops: Twins) -> None:
    loops.same(habit)


def test_gradients_that_are_zeroed_in_place_or_removed_are_as_in_plain_pytorch(loops: Twins) -> None:
    assert loops.same("zeroed_to_none")[0] == [None] * 4
    assert loops.same("zeroed_in_place")[0] == [torch.tensor(0.0)] * 4
    final = loops.ended.final()
    last = [final[f"{habit}.first.weight"] for habit in ("zeroed_to_none", "zeroed_in_place")]
    assert not torch.equal(*last)  # a gradient of zeros is none that is missing: momentum and decay go on


def test_a_sub_module_saved_in_mid_training_is_small_and_of_the_present_version(loops: Twins) -> None:
    saved, single, of_whole, present, _ = loops.same("saved_sub_module")
    same_bits(saved, present)
    same_bits(of_whole, present)
    assert torch.equal(single, present["first.weight"])


# --- with a loader --------------------------------------------------------------------------------------


def _uses(loaded: Twins, habit: str) -> list[tuple[int, str]]:
    """(step, use) of the batches of the two epochs in which that habit trained, in order."""
    epoch = 2 * list(loaded.plain_seen).index(habit)
    return loaded.ended.rows("SELECT step, used FROM batches WHERE epoch IN (?, ?) ORDER BY rowid", epoch, epoch + 1)


def test_gradients_accumulated_over_batches_are_one_push_for_each_step(loaded: Twins) -> None:
    loaded.same("accumulated")
    uses = _uses(loaded, "accumulated")
    assert [used for _, used in uses] == ["step"] * 14
    steps = [step for step, _ in uses]
    assert steps == [steps[0] + number // 2 for number in range(14)]
    pushes = loaded.ended.rows("SELECT count(*) FROM pushes WHERE step BETWEEN ? AND ?", steps[0], steps[-1])
    assert pushes == [(7,)]


def test_a_step_that_the_scaler_skips_is_none_and_its_batches_are_consumed_and_not_applied(loaded: Twins) -> None:
    scales = loaded.same("scaled")
    assert scales[9] == scales[8] / 2
    assert max(scales) > scales[0]
    assert sorted(used for _, used in _uses(loaded, "scaled")) == ["skipped"] + ["step"] * 13
    total = 2 * 26 * len(loaded.plain_seen)
    assert (loaded.ended.summary["samples"], loaded.ended.summary["samples_missed"]) == (total - 4, 0)


def test_a_fused_optimizer_unscales_and_skips_what_a_scaler_leaves_to_it(runs: Runs, folder: Path) -> None:
    final = runs["fused"].result().completed().final()
    twin = functions_of(FUSED)
    model, optimizer = twin.build()
    scales = twin.train(model, optimizer)
    assert scales[3] == scales[2] / 2
    assert torch.load(folder / "fused") == scales
    same_bits(final, model.state_dict())


def test_one_worker_s_batch_norm_is_plain_pytorch_s(loaded: Twins) -> None:
    loaded.same("batch_norm")
    assert loaded.ended.final()["batch_norm.norm.num_batches_tracked"] == 14


# --- the optimizer's state ------------------------------------------------------------------------------


def test_the_optimizer_s_state_after_some_steps_is_plain_pytorch_s(runs: Runs, folder: Path) -> None:
    runs["save"].result().completed()
    same_bits(torch.load(folder / "save")["optimizer"], torch.load(folder / "plain")["optimizer"])
    begun = functions_of(CHECKPOINTS).build(3)[1].state_dict()
    same_bits(torch.load(folder / "save")["begun"], begun)
    assert (folder / "save").stat().st_size < 2 * (folder / "plain").stat().st_size


@pytest.mark.parametrize(("ended", "saved"), [("save", "save"), ("resume", "plain")])
def test_a_checkpoint_of_a_run_goes_on_in_plain_pytorch_and_one_of_plain_pytorch_in_a_run(
    ended: str, saved: str, runs: Runs, folder: Path
) -> None:
    final = runs[ended].result().completed().final()
    twin = functions_of(CHECKPOINTS)
    model, optimizer = twin.build(4, rate=0.5)
    twin.resume(model, optimizer, torch.load(folder / saved))
    same_bits(final, model.state_dict())


# --- loaders --------------------------------------------------------------------------------------------


class Ordered:
    """A loader's batches in the order that a run with this seed draws, fetched in this process."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.epoch = loader, -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        for ids in epoch_order(self.loader.batch_sampler, SEED, self.epoch):
            yield self.loader.collate_fn([self.loader.dataset[one] for one in ids])


def test_a_loader_s_own_samplers_collate_fn_and_processes_decide_what_its_batches_are(runs: Runs, folder: Path) -> None:
    ended = runs["loader"].result().completed()
    there = torch.load(folder / "loader")
    twin = functions_of(LOADER)
    model, optimizer, loader = twin.build()
    loader.dataset.offset = 0.5  # as `started` does in a loader's process
    here = twin.train(model, optimizer, Ordered(loader))
    assert there["length"] == len(loader)
    same_bits(there["seen"], here["seen"])
    same_bits(ended.final(), model.state_dict())
    first, second = ([one for ids, *_ in there["seen"][at : at + 6] for one in ids] for at in (0, 6))
    assert len(first) == 27
    assert sorted(first) != sorted(second)
    assert len(set(first)) < 25  # drawn with replacement
    assert ended.log(0).count("Warning") <= 1  # of memory that is pinned for no GPU
    pids = {pid for batch in there["pids"] for pid in batch}
    assert len(pids) == 2, "persistent processes persist"
    assert there["pid"] not in pids


def test_of_a_stream_each_worker_iterates_its_own_and_one_line_says_that_it_is_not_shared_out(
    runs: Runs, folder: Path
) -> None:
    ended = runs["stream"].result().completed()
    assert torch.load(folder / "stream.0") == [float(one) for one in range(10)] * 2
    assert torch.load(folder / "stream.1") == [float(one) for one in range(100, 114)] * 2
    assert ended.summary["steps"] == 10 + 14
    assert ended.summary["samples"] is None
    lines = [line for line in ended.err.splitlines() if "IterableDataset" in line]
    assert len(lines) == 1, ended.err
