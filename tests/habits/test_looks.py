"""A look at the loader takes nothing from it, before the training loop and inside it. One loop trains at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run
from support.scripts import script
from support.sound import sound
from support.suites import each

SCRIPT = script("""
looks, loaders, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def meet(name):
    # Where no worker waits for another, one could train all batches before the other looks.
    if folder != "alone":
        Path(folder, f"{name}-{paceline.worker()}").touch()
    while folder != "alone" and not Path(folder, f"{name}-{1 - paceline.worker()}").exists():
        time.sleep(0.01)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 2))
loader = DataLoader(data, batch_size=size, shuffle=True, num_workers=loaders)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
if looks == "one":
    x, y = next(iter(loader))
    meet("looked")
elif looks == "three":
    for number, (x, y) in enumerate(loader):
        if number == 2:
            break
elif looks == "kept":
    kept = iter(loader)
    x, y = next(kept)
for epoch in range(2):
    for number, (x, y) in enumerate(loader):
        if looks == "nested":
            for x, y in loader:
                break
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if looks == "inside" and number == 2:
            meet(f"there-{epoch}")
            next(iter(loader))
            seen = sum(len(x) for x, y in loader)
            meet(f"looked-{epoch}")
""")

INSIDE = {"asp", "ripples", "all-reduce"}
"""Where two workers look from inside the loop."""
LONG = ("dssp", "hsp", "ssp", "sync-switch")  # others of their kind are tried by default


def look(launch: Launch, looks: str, *flags: str, loaders: int = 0, size: int = 8, folder: str | Path = "alone") -> Run:
    args = (looks, str(loaders), str(size), str(folder))
    return launch.run(SCRIPT, "--threads", "1", "--seed", "4", *flags, args=args).completed()


WHILE_ANOTHER_LOOKS = script("""
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
loader = DataLoader(data, batch_size=8)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)

def meet(name):
    Path(sys.argv[1], f"{name}-{paceline.worker()}").touch()
    while not Path(sys.argv[1], f"{name}-{1 - paceline.worker()}").exists():
        time.sleep(0.01)

for epoch in range(2):
    for number, (x, y) in enumerate(loader):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == number == 0:
            meet("stepped")
            if paceline.worker() == 0:
                for x, y in loader:
                    pass
                Path(sys.argv[1], "all").touch()
            while not Path(sys.argv[1], "all").exists():
                time.sleep(0.01)
            if paceline.worker() == 1:
                x, y = next(iter(loader))
                assert len(x) == 8
            meet("looked")
""")


@pytest.mark.parametrize("protocol", each(sorted(registry()), long=LONG))
def test_two_workers_that_look_at_the_loader_train_every_sample_once(
    protocol: str, launch: Launch, tmp_path: Path
) -> None:
    looks = "inside" if protocol in INSIDE else "one"
    ended = look(launch, looks, "-n", "2", "-p", protocol, folder=tmp_path)
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (512, 0)
    opened = ended.rows("SELECT DISTINCT epoch FROM epochs ORDER BY epoch")
    if looks == "one":
        assert opened == [(0,), (1,)]
    else:  # a look to the end of an epoch's data goes on in the next one
        assert opened[:3] == [(0,), (1,), (2,)]
    used = "SELECT DISTINCT epoch, batch FROM batches"  # some are used twice where late gradients are dropped
    assert ended.rows(f"SELECT count(*) FROM ({used})") == [(64,)]
    ((dropped,),) = ended.rows("SELECT count(*) FROM orders WHERE kind = 'DropUpdate'")
    assert ended.rows("SELECT count(*) FROM batches") == [(64 + dropped,)], "none is skipped"
    assert main(["check", str(ended.folder)]) == 0


def test_a_worker_can_look_while_another_one_looks_at_all_that_is_left_of_the_epoch(
    launch: Launch, tmp_path: Path
) -> None:
    ended = launch.run(WHILE_ANOTHER_LOOKS, "-n", "2", "-p", "asp", "--threads", "1", args=(str(tmp_path),)).completed()
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (128, 0)
    sound(ended)


def test_a_run_is_the_same_to_the_bit_with_a_look_and_without(launch: Launch) -> None:
    plain = look(launch, "none", "-n", "1", "-p", "bsp")
    assert plain.rows("SELECT * FROM looks") == []
    ahead = 4  # of two loader processes
    for looks, loaders, seen in (("one", 0, 1), ("three", 2, 3 + ahead), ("kept", 2, 1 + ahead), ("inside", 0, 68)):
        looked = look(launch, looks, "-n", "1", "-p", "bsp", loaders=loaders)
        assert looked.summary["final_parameters_sha256"] == plain.summary["final_parameters_sha256"], looks
        assert looked.rows("SELECT epoch, batch FROM batches") == plain.rows("SELECT epoch, batch FROM batches"), looks
        assert len(looked.rows("SELECT * FROM looks")) == seen, looks
        assert looked.summary["samples_missed"] == 0, looks
        assert main(["check", str(looked.folder)]) == 0, looks
    assert main(["replay", str(looked.folder), "--out", str(looked.folder / "again")]) == 0


def test_a_loop_that_goes_on_after_another_one_has_trained_is_refused(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp", "--max-seconds", "20", args=("nested", "0", "8", "alone"))
    run.refused("one loop at a time: give the other loop a DataLoader of its own")
    assert run.err.count("\n") == 1


def test_a_look_that_fetches_ahead_to_the_end_of_the_data_did_not_ask_in_vain(launch: Launch) -> None:
    looked = look(launch, "one", "-n", "1", "-p", "bsp", loaders=1, size=128)
    assert set(looked.rows("SELECT * FROM looks")) == {(0, 0, 0), (0, 0, 1), (0, 0, None)}
    assert main(["check", str(looked.folder)]) == 0


PASSES = script("""
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 2)), batch_size=8)
plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))
model, optimizer, loader, plan = paceline.prepare(model, optimizer, loader, plan)
for epoch in range(3):
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        plan.step()
    with torch.no_grad():
        seen = sum(len(x) for x, y in loader)
print("seen", seen, "at", plan.last_epoch)
""")


def test_a_pass_that_only_evaluates_is_told_of_and_no_part_of_a_schedule_s_plan(launch: Launch) -> None:
    ended = launch.run(PASSES, "-n", "2", "-p", "bsp", "--threads", "1", "--tee", "all").completed()
    assert ended.err.count("worker 0 goes through the prepared loader to its end without a gradient") == 1
    assert ended.out.count("seen 32 at 24") == 2


ANOTHER = script("""
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in range(3):
    if epoch == 1 and "another" in sys.argv:
        loader = DataLoader(data, batch_size=2)
    for x, y in loader:
        for repeat in range(30 if "repeats" in sys.argv else 1):
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
""")


@pytest.mark.parametrize(("what", "told"), [("another", 1), ("repeats", 0)])
def test_steps_of_a_loader_that_was_not_prepared_are_told_of(what: str, told: int, launch: Launch) -> None:
    ended = launch.run(ANOTHER, "-n", "2", "-p", "bsp", "--threads", "1", args=(what,)).completed()
    assert ended.err.count("steps since its last batch of the loader that prepare() returned") == told


SHUFFLES = script("""
import random

class Files(torch.utils.data.Dataset):
    def __init__(self):
        self.files = list(range(64))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, place):
        return torch.full((4,), float(self.files[place])), self.files[place]

torch.manual_seed(0)
data = Files()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in range(3):
    random.shuffle(data.files)
    for x, files in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("epoch", epoch, *files.tolist())
        if epoch == 1:
            torch.rand(paceline.worker() + 1)
""")


def test_a_data_set_that_the_script_shuffles_between_its_loops_is_the_same_in_all_workers(launch: Launch) -> None:
    ended = launch.run(SHUFFLES, "-n", "2", "-p", "asp", "--threads", "1", "--tee", "all").completed()
    lines = [line.split("epoch ")[1].split() for line in ended.out.splitlines() if "epoch " in line]
    for epoch in "012":
        assert sorted(int(file) for number, *files in lines if number == epoch for file in files) == [*range(64)]
