"""A subclass of DataLoader keeps its behaviour, and each batch is used once, by whichever worker."""

from __future__ import annotations

import json

import pytest

from support.launch import Launch
from support.runs import Run
from support.scripts import script, training
from support.sound import sound
from support.suites import each

SCRIPT = script("""
import threading
from queue import Queue
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

name, loaders = sys.argv[1], int(sys.argv[2])

class Merges(DataLoader):
    def __iter__(self):
        before = None
        for (x,) in super().__iter__():
            if before is None:
                before = x
            else:
                yield (torch.cat([before, x]),)
                before = None
        if before is not None:
            yield (before,)

class Splits(DataLoader):
    def __iter__(self):
        for (x,) in super().__iter__():
            yield (x[:5],)
            yield (x[5:],)

class InThread(DataLoader):
    def __iter__(self):
        batches, ready = super().__iter__(), Queue(1)

        def fill():
            for batch in batches:
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=fill, daemon=True).start()
        return iter(ready.get, None)

class Twice(DataLoader):
    def __iter__(self):
        for _ in range(2):
            yield from super().__iter__()

class TorchsIterator(DataLoader):
    def __iter__(self):
        return _SingleProcessDataLoaderIter(self)

class Fetches(DataLoader):
    def __iter__(self):
        for ids in self.batch_sampler:
            yield self.collate_fn([self.dataset[one] for one in ids])

class Counts(DataLoader):
    passes = 0

    def __iter__(self):
        self.passes += 1
        for (x,) in super().__iter__():
            yield (x + 0.125 * self.passes,)

class Repeats:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Ready(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeats(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

torch.manual_seed(0)
data = TensorDataset(torch.arange(64.0).reshape(64, 1))
loader = globals()[name](data, batch_size=8, shuffle=True, num_workers=loaders)
model, optimizer = nn.Linear(1, 1), None
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
assert isinstance(loader, globals()[name]) and len(loader) == 8
seen = []

def train(batches):
    seen.append([])
    for (x,) in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen[-1] += x.flatten().tolist()

for _ in range(2):
    train(loader)
print(json.dumps(seen))
""")

ONCE = [float(one) for one in range(64)]
LEASED = {
    "Merges": ONCE,
    "Splits": ONCE,
    "Twice": sorted(2 * ONCE),
    "TorchsIterator": ONCE,
    "Fetches": ONCE,
}
"""By class: what the workers see in an epoch."""
DEFAULT = {("Merges", "asp"), ("Twice", "bsp"), ("Fetches", "ad-psgd")}


def trained(launch: Launch, name: str, *flags: str, loaders: int = 0, workers: int = 2) -> Run:
    """A run with a loader of that class, checked and replayed."""
    flags = ("-n", str(workers), "--threads", "1", "--seed", "4", *flags)
    run = launch.run(SCRIPT, *flags, args=(name, str(loaders))).completed()
    sound(run)
    return run


def seen_in(run: Run, loop: int) -> list[float]:
    """What all workers saw in their loops of that number."""
    logs = [run.log(worker).splitlines()[-1] for worker in range(run.summary["workers"])]
    return sorted(one for log in logs for one in json.loads(log)[loop])


@pytest.mark.parametrize(
    ("name", "protocol"),
    each([(name, p) for name in LEASED for p in ("bsp", "asp", "all-reduce", "ad-psgd", "ps-plus")], default=DEFAULT),
)
def test_the_batches_of_a_class_that_iterates_in_its_own_way_are_leased(
    name: str, protocol: str, launch: Launch
) -> None:
    run = trained(launch, name, "-p", protocol)
    assert [seen_in(run, loop) for loop in range(2)] == [LEASED[name]] * 2
    assert (run.summary["samples"], run.summary["samples_missed"]) == (256 if name == "Twice" else 128, 0)


@pytest.mark.parametrize("loaders", each([0, 2], long=(0,)))
@pytest.mark.parametrize("protocol", each(["bsp", "asp", "ad-psgd"], default=("asp",)))
def test_each_worker_uses_its_items_of_what_a_ready_iterator_gives(loaders: int, protocol: str, launch: Launch) -> None:
    run = trained(launch, "Ready", "-p", protocol, loaders=loaders)
    assert [seen_in(run, loop) for loop in range(2)] == [ONCE] * 2
    assert "the loader's class Ready iterates in a way of its own" in run.err
    assert "each of the 2 workers loads all batches, and trains on one in 2" in run.err


def test_what_a_class_sets_as_it_iterates_is_there_in_the_next_loop(launch: Launch) -> None:
    run = trained(launch, "Counts", "-p", "bsp")
    assert [seen_in(run, loop) for loop in range(2)] == [
        [one + 0.125 * (1 + loop) for one in ONCE] for loop in range(2)
    ]


def test_a_class_may_fetch_ahead_in_a_thread(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp", args=("InThread", "0")).completed()
    assert [seen_in(run, loop) for loop in range(2)] == [ONCE] * 2
    assert (run.summary["samples"], run.summary["samples_missed"]) == (128, 0)


DATA = """
from torch.utils.data import Dataset, default_collate

class Data(Dataset):
    add = 0

    def __len__(self):
        return 64

    def __getitem__(self, one):
        return torch.ones(4) + self.add, torch.ones(2)

def doubled(items):
    return [2 * part for part in default_collate(items)]

loaders, persistent = int(sys.argv[1]), sys.argv[2] == "persistent"
loader = DataLoader(Data(), batch_size=8, num_workers=loaders, persistent_workers=persistent)
seen = []
"""
SETS = """
seen.append(x[0, 0].item())
if epoch == 0:
    loader.collate_fn = doubled
    assert loader.collate_fn is doubled
if epoch == 1:
    loader.dataset.add = 2
"""


@pytest.mark.parametrize(
    ("loaders", "persistent", "expected"), [("0", "anew", "[1.0, 2.0, 6.0]"), ("1", "persistent", "[1.0, 1.0, 1.0]")]
)
def test_what_is_set_between_loops_holds_from_the_next_one_on_unless_processes_persist(
    loaders: str, persistent: str, expected: str, launch: Launch
) -> None:
    script = training(before=DATA, each_epoch=SETS, after="print(seen)", epochs=3)
    run = launch.run(script, "-n", "2", "-p", "bsp", args=(loaders, persistent)).completed()
    assert [run.log(worker) for worker in range(2)] == [f"{expected}\n"] * 2
    assert ("has set the loader's collate_fn, which has no effect: with persistent_workers=True" in run.err) is (
        persistent == "persistent"
    )


CYCLE = script("""
torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = DataLoader(TensorDataset(torch.arange(60.0).reshape(60, 1)), batch_size=8, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, shards="static")
example = next(iter(loader))
for _, (x,) in zip(range(12), itertools.cycle(loader)):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""")


@pytest.mark.parametrize(
    "protocol",
    each(["bsp", "asp", "all-reduce", "ad-psgd", "ps-plus", "sync-switch:switch_at=0.5"], default=("bsp", "asp")),
)
def test_a_script_that_repeats_kept_batches_has_all_of_its_passes_counted(protocol: str, launch: Launch) -> None:
    run = launch.run(CYCLE, "-n", "2", "-p", protocol, "--threads", "1").completed()
    assert run.err.count("trains again on batches that its script keeps since an earlier loop, as itertools.cycle") == 1
    assert run.summary["samples"] == 3 * 60
    assert run.rows("SELECT used, count(*) FROM batches GROUP BY 1 ORDER BY 1") == [("again", 16), ("step", 8)]
    assert run.rows("SELECT json_extract(body, '$.samples') FROM facts WHERE kind = 'GradientReady'").count((4,)) == 3
    assert run.rows("SELECT 1 FROM facts WHERE kind = 'GradientReady' AND json_extract(body, '$.weight')") == []
    assert len(run.rows("SELECT 1 FROM versions WHERE samples > 60")) > 2
    assert run.rows("SELECT max(samples) FROM versions") == [(180,)]
    sound(run)


@pytest.mark.parametrize("protocol", each(["bsp", "all-reduce"], default=("bsp",)))
def test_a_run_whose_script_repeats_batches_goes_on_with_all_that_counted(protocol: str, launch: Launch) -> None:
    """In the first pass it is dealt the rest of the epoch, and repeats that. In a later pass, there is no data left."""
    script = CYCLE.replace("example = next(iter(loader))", "")
    stopped = launch.run(script, "-n", "2", "-p", protocol, "--threads", "1", "--max-steps", "4").completed()
    resumed = launch.resume(stopped.folder, "--max-steps", "16").completed()
    assert resumed.rows("SELECT used, count(*) FROM batches GROUP BY 1 ORDER BY 1") == [("again", 8), ("step", 8)]
    assert resumed.summary["samples"] == 60 + 2 * 28
    over = launch.resume(stopped.folder, "--max-steps", "20").completed()
    assert "no step was made: the run had used all batches of its epochs" in over.err + over.out
    assert over.summary["samples"] == 60 + 2 * 28
    assert over.summary["segments"] == 3
    sound(over)
