"""Scripts that remove, move and replace files as if they were alone: no worker takes another's away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.launch import Launch
from support.scripts import training
from support.suites import each

PROTOCOLS = ("bsp", "asp", "all-reduce", "ad-psgd", "ps-plus")

IMPORTS = """
    import glob, json, shutil, tempfile
    from pathlib import Path
    from logging.handlers import RotatingFileHandler

    os.chdir({folder!r})
    """


def script(folder: Path, each_epoch: str, before: str = "", epochs: int = 4) -> str:
    """It works in that folder. Every worker does `each_epoch` at an epoch's end."""
    return training(before=IMPORTS.format(folder=str(folder)) + before, each_epoch=each_epoch, epochs=epochs)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # another host's workers save below where it is started
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


ROTATES = """
os.makedirs("ckpt", exist_ok=True)
name = f"ckpt/epoch{epoch}-of{me}.pt"
torch.save({"worker": me, "epoch": epoch}, name)
for old in sorted(glob.glob("ckpt/*.pt"), key=os.path.getmtime)[:-2]:
    os.remove(old)
for old in sorted(Path("ckpt").glob("*.pt"))[:-2]:
    old.unlink()
assert torch.load(name) == {"worker": me, "epoch": epoch}
for old in glob.glob("best-*.pt"):
    os.remove(old)
torch.save({"worker": me}, f"best-{me}{epoch}.pt")
"""


@pytest.mark.parametrize("workers", [("-n", "4"), ("-n", "2", "--emulate-hosts", "2")], ids=["a host", "two hosts"])
@pytest.mark.parametrize("protocol", each(PROTOCOLS, default=("bsp",)))
def test_the_last_checkpoints_of_worker_0_stay_whoever_lists_and_removes_old_ones(
    protocol: str, workers: tuple[str, ...], launch: Launch, folder: Path
) -> None:
    launch.run(script(folder, ROTATES), *workers, "-p", protocol).completed()
    assert sorted(file.name for file in (folder / "ckpt").iterdir()) == ["epoch2-of0.pt", "epoch3-of0.pt"]
    assert torch.load(folder / "ckpt" / "epoch3-of0.pt") == {"worker": 0, "epoch": 3}
    assert [file.name for file in folder.glob("best-*")] == ["best-03.pt"]


CLEANS = """
    if os.path.exists("out"):
        shutil.rmtree("out")
    os.makedirs("out")
    json.dump({"worker": me}, open("out/config.json", "w"))
    torch.save({"worker": me}, "out/vocabulary.pt")
    open(f"out/log-{me}.txt", "w").write(f"of {me}")
    """


@pytest.mark.parametrize("start", each(["staggered", "together"], long=("staggered",)))
def test_a_script_that_begins_with_an_empty_folder_has_it_from_worker_0_and_each_reads_its_own(
    start: str, launch: Launch, folder: Path
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "of-before.txt").touch()
    reads = """
assert json.load(open("out/config.json")) == torch.load("out/vocabulary.pt") == {"worker": me}
torch.save({"worker": me}, "out/model.pt")
"""
    launch.run(script(folder, reads, before=CLEANS), "-n", "3", "--start", start).completed()
    names = ["config.json", *(f"log-{worker}.txt" for worker in range(3)), "model.pt", "vocabulary.pt"]
    found = sorted(file.name for file in (folder / "out").iterdir())
    assert found == names if start == "staggered" else {"config.json", "model.pt", "vocabulary.pt"} <= set(found)
    assert json.loads((folder / "out" / "config.json").read_text()) == {"worker": 0}
    assert torch.load(folder / "out" / "model.pt") == {"worker": 0}


REPLACES = """
mine = {"worker": me, "epoch": epoch, "padding": "x" * (100 + 5000 * me)}
for name in ("state", f"state-{epoch}"):  # a temporary file, which then takes the place of the old one
    with open("tmp.json", "w") as file:
        json.dump(mine, file)
    os.replace("tmp.json", f"{name}.json")
    assert json.load(open(f"{name}.json")) == mine
handle, unfinished = tempfile.mkstemp(dir=".")
with os.fdopen(handle, "w") as file:
    json.dump(mine, file)
shutil.move(unfinished, "moved.json")
assert json.loads(Path("moved.json").read_text()) == mine
shutil.copy("moved.json", "copied.json")
assert json.loads(Path("copied.json").read_text()) == mine
torch.save({"worker": me, "epoch": epoch}, f"model-{epoch}.pt")
for name, link in (("latest.pt", os.symlink), ("last", os.symlink), ("hard.pt", os.link)):
    if os.path.lexists(name):
        os.remove(name)
    link(f"model-{epoch}.pt", name)
    assert torch.load(name) == {"worker": me, "epoch": epoch}, (name, torch.load(name), os.path.realpath(name))
if os.path.isdir("unfinished"):
    shutil.rmtree("unfinished")
os.makedirs("unfinished")
torch.save({"worker": me}, "unfinished/model.pt")
Path("unfinished", "about.json").write_text(json.dumps(mine))
os.rename("unfinished", f"step-{epoch}")
assert json.load(open(f"step-{epoch}/about.json")) == mine
for old in sorted(glob.glob("step-*"))[:-2]:
    shutil.rmtree(old)
if os.path.exists("backup"):
    shutil.rmtree("backup")
shutil.copytree(f"step-{epoch}", "backup")
assert torch.load("backup/model.pt") == {"worker": me}
with tempfile.TemporaryDirectory(dir=".") as own:
    Path(own, "x").touch()
assert not os.path.exists(own)
Path(f"log-{me}.tmp").write_text(str(epoch))
Path(f"log-{me}.tmp").rename(f"log-{me}.txt")
"""


@pytest.mark.parametrize(
    "workers",
    [("-n", "4"), pytest.param(("-n", "2", "--emulate-hosts", "2"), marks=pytest.mark.long)],
    ids=["a host", "two hosts"],
)
@pytest.mark.parametrize("protocol", each(PROTOCOLS, default=("asp",)))
def test_each_worker_finds_what_it_has_put_in_another_file_s_place_and_worker_0_s_is_at_the_path(
    protocol: str, workers: tuple[str, ...], launch: Launch, folder: Path
) -> None:
    launch.run(script(folder, REPLACES), *workers, "-p", protocol).completed()
    for name in ("state", "state-0", "state-3", "moved", "copied", "step-3/about"):
        assert json.loads((folder / f"{name}.json").read_text())["worker"] == 0
    for name in ("latest.pt", "last", "hard.pt"):
        assert torch.load(folder / name) == {"worker": 0, "epoch": 3}
    logs = [f"log-{worker}.txt" for worker in range(4)]
    assert [(folder / name).read_text() for name in logs] == ["3"] * 4
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [
            *logs,
            *(f"state-{epoch}.json" for epoch in range(4)),
            *(f"model-{epoch}.pt" for epoch in range(4)),
            *("state.json", "moved.json", "copied.json", "latest.pt", "last", "hard.pt", "backup", "step-2", "step-3"),
        ]
    )


def test_with_saves_all_a_worker_s_removals_are_its_script_s(launch: Launch, folder: Path) -> None:
    (folder / "of-before.txt").touch()
    removes = 'if me == 1 and epoch == 0:\n    os.remove("of-before.txt")'
    launch.run(script(folder, removes), "-n", "2").completed()
    assert (folder / "of-before.txt").exists()
    launch.run(script(folder, removes), "-n", "2", "--saves", "all").completed()
    assert not (folder / "of-before.txt").exists()
