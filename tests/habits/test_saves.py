"""Scripts that save as if they were alone: one writer for each path, whole files, and everybody finds its own again."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.worker_process.file_functions import Opening, WorkerFiles
from paceline.worker_process.saves import Saves
from paceline.worker_process.touched import Touched, notes
from support.launch import Launch
from support.scripts import script, training

LOOKS = """
import json, shutil
from pathlib import Path
import safetensors.torch
folder = sys.argv[1]
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
path = f"{folder}/state.pt"
wrong = []

def look(saved, number, what):
    "Whose it is, which round's, and whether all of it is of one save."
    whole = saved["ballast"].eq(saved["mark"]).all()
    if not (saved["worker"] == me == saved["mark"] // 1000 and saved["mark"] % 1000 == number and whole):
        wrong.append([what, number, int(saved["worker"]), int(saved["mark"])])

"""
"""What a worker has and does before it trains."""
SAVES = """
    number = epoch
    mark = 1000 * me + number
    ballast = torch.full((60_000,), mark)
    state = {"worker": me, "mark": mark, "ballast": ballast, "model": model.state_dict()}
    torch.save({**state, "optimizer": optimizer.state_dict()}, path)
    look(torch.load(path), number, "state")
    # as careful scripts do it, and as those that keep the best
    torch.save(state, f"{folder}/partial.tmp")
    os.replace(f"{folder}/partial.tmp", f"{folder}/last.pt")
    look(torch.load(Path(folder, "last.pt")), number, "replaced")
    shutil.copyfile(path, f"{folder}/best.pt")
    look(torch.load(f=f"{folder}/best.pt"), number, "copied")
    torch.save(state, f=f"{folder}/round-{number}.pt")
    if number > 1:
        os.remove(f"{folder}/round-{number - 2}.pt")
        assert not Path(folder, f"round-{number - 2}.pt").exists() or me > 0
    assert Path(folder, f"round-{number}.pt").exists()
    model.mark = (me, number)
    with open(f"{folder}/model.ckpt", "wb") as file:
        torch.save(model, file)
    with open(f"{folder}/model.ckpt", "rb") as file:
        assert torch.load(file, weights_only=False).mark == (me, number)
    with Path(folder, "opened.pth").open("wb") as file:
        torch.save({"worker": me}, file, _use_new_zipfile_serialization=number % 2 == 0)
    assert torch.load(Path(folder, "opened.pth")) == {"worker": me}
    tensors = {"ballast": ballast, "mark": torch.tensor(mark), "worker": torch.tensor(me)}
    safetensors.torch.save_file(tensors, f"{folder}/weights.safetensors")
    look(safetensors.torch.load_file(f"{folder}/weights.safetensors"), number, "safetensors")
"""
AFTER = """
assert paceline.is_main() == (me == 0)
try:
    torch.load(f"{folder}/nowhere.pt")
except FileNotFoundError as error:
    assert "worker-" not in str(error), error
else:
    wrong.append("nowhere.pt was there")
try:
    torch.save({}, f"{folder}/missing/nowhere.pt")
except RuntimeError as error:
    assert "missing does not exist" in str(error), error
else:
    wrong.append("missing/nowhere.pt was saved")
torch.load(f"{folder}/given.pt", weights_only=True)["given"]
for _ in range(2):
    with open(f"{folder}/opened-{me}", "wb") as file:
        torch.save({"worker": me}, file)
torch.save({"worker": me}, os.devnull)
print("wrong", json.dumps(wrong))
"""

FILES = ["best.pt", "last.pt", "model.ckpt", "opened.pth", "state.pt", "weights.safetensors"]


@pytest.mark.parametrize("protocol", ["bsp", "ps-plus", "ad-psgd"])
def test_four_workers_that_save_to_one_path_each_read_what_they_saved_and_worker_0_s_file_is_whole(
    protocol: str, launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    torch.save({"given": 1}, folder / "given.pt")
    script = training(before=LOOKS, each_epoch=SAVES, after=AFTER, epochs=6)
    ended = launch.run(script, "-n", "4", "-p", protocol, "--threads", "1", args=(str(folder),)).completed()
    remark = f"paceline: worker 1 saves to '{folder}/opened-1', a file that the script opened itself"
    assert ended.err.count("a file that the script opened itself") == ended.err.count(remark) == 1
    for worker in range(4):
        (line,) = [line for line in ended.log(worker).splitlines() if line.startswith("wrong")]
        assert json.loads(line.removeprefix("wrong")) == []
    opened = [f"opened-{worker}" for worker in range(4)]
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [*FILES, "given.pt", "round-4.pt", "round-5.pt", *opened]
    )
    for name in ("best.pt", "last.pt", "state.pt"):
        found = torch.load(folder / name)
        assert (found["worker"], found["mark"]) == (0, 5)
    assert torch.load(folder / "model.ckpt", weights_only=False).mark == (0, 5)
    for worker in range(1, 4):
        own = ended.folder / f"worker-{worker}" / "saved" / folder.resolve().relative_to("/")
        names = [*FILES, "round-4.pt", "round-5.pt", f"opened-{worker}"]
        assert sorted(file.name for file in own.iterdir()) == sorted(names)


def test_a_save_that_fails_half_way_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"whole")

    def save() -> None:
        with Saves(None, Touched(0, notes())).writing(path) as file:
            Path(file).write_bytes(b"ha")
            assert path.read_bytes() == b"whole"
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        save()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


# --- files that a script opens itself


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    """As in worker 1; the script's folder is `script`."""
    (tmp_path / "script").mkdir()
    shared = notes(with_first=True)
    yield Opening(WorkerFiles.of(1, tmp_path / "run", shared, print), io.open)
    os.close(shared)


def written(opening: Opening, path: Path, mode: str, content: str) -> None:
    with opening(path, mode) as file:
        file.write(content.encode() if "b" in mode else content)


@pytest.mark.parametrize("name", ["log.txt", "model.pt.txt", "data.bin", "cache.pkl", "model"])
def test_a_file_that_is_no_checkpoint_by_its_name_is_written_where_the_script_says(
    opening: Opening, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "script" / name
    written(opening, path, "wb", "x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("mode", ["w", "a", "ab", "r+b"])
def test_text_and_what_is_added_to_a_file_goes_where_the_script_says(
    opening: Opening, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "script" / "model.pt"
    path.write_text("")
    written(opening, path, mode, "x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("mode", ["wb", "bw", "w+b", "xb"])
@pytest.mark.parametrize("name", ["model.pt", "MODEL.PT", "m.pth", "m.ckpt", "m.pth.tar", "m.safetensors"])
def test_a_checkpoint_is_the_worker_s_own_from_when_it_is_written(
    opening: Opening, tmp_path: Path, mode: str, name: str
) -> None:
    path = tmp_path / "script" / name
    if "x" not in mode:
        path.write_text("of worker 0")
        assert opening(str(path)).read() == "of worker 0"
    written(opening, path, mode, "own")
    assert opening(file=path, mode="rb").read() == b"own"
    written(opening, path, "ab", " and more")
    assert opening(path).read() == "own and more"
    assert not path.exists() if "x" in mode else path.read_text() == "of worker 0"


def test_a_file_that_can_t_be_opened_is_told_by_the_path_that_the_script_said(opening: Opening, tmp_path: Path) -> None:
    for path in (tmp_path / "script" / "missing" / "model.pt", tmp_path / "script" / "nowhere.pt"):
        with pytest.raises(FileNotFoundError) as caught:
            opening(path, "wb" if "missing" in path.parts else "rb")
        assert caught.value.filename in (path, str(path))
    with pytest.raises(ValueError, match="mode"):
        opening(tmp_path / "script" / "model.pt", "wbz")
    with pytest.raises(TypeError):
        opening()


def test_an_open_with_an_opener_is_the_script_s(opening: Opening, tmp_path: Path) -> None:
    path = tmp_path / "script" / "model.pt"
    with opening(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


def test_open_stays_a_name_that_a_class_can_have(opening: Opening) -> None:
    opens = type("Opens", (), {"open": opening})
    with opens().open(__file__) as file:
        assert file.readline().startswith('"""')
    assert opening.__name__ == "open"


SAVES_BETWEEN_LOOPS = script("""
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 2))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=4)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), io.BytesIO())
paceline.finish()
torch.save(model.state_dict(), io.BytesIO())
""")


@pytest.mark.parametrize(("protocol", "times"), [("local-sgd:every=50", 1), ("bsp", 0)])
def test_one_line_says_where_what_is_saved_lacks_steps_with_which_a_worker_validates(
    protocol: str, times: int, launch: Launch
) -> None:
    run = launch.run(SAVES_BETWEEN_LOOPS, "-n", "2", "-p", protocol, "--threads", "1").completed()
    assert run.err.count("lacks the own steps that it has made since") == times
