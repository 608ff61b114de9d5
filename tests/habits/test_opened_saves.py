"""Scripts that save through a file that they open: a checkpoint has one writer then, too."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.worker_process.file_functions import Opening, WorkerFiles
from paceline.worker_process.touched import notes
from support.launch import Launch
from support.scripts import script

SCRIPT = script("""
me = paceline.worker()
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 2)), batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=4)
path = os.path.join(sys.argv[1], "model.pt")
for number in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    model.mark = (me, number)
    model.ballast = torch.full((60_000,), me)
    with open(path, "wb") as file:
        torch.save(model, file)
    with open(path, "rb") as file:
        read = torch.load(file, weights_only=False)
    assert read.mark == (me, number) and read.ballast.eq(me).all()
    assert torch.load(path, weights_only=False).mark == (me, number)
    with Path(path).with_suffix(".pth").open("wb") as file:
        torch.save({"worker": me}, file, _use_new_zipfile_serialization=number % 2 == 0)
    assert torch.load(Path(path).with_suffix(".pth")) == {"worker": me}
    torch.save({"worker": me}, path + ".ckpt", _use_new_zipfile_serialization=False)
    assert torch.load(path + ".ckpt") == {"worker": me}
""")


def test_workers_that_save_a_model_to_a_file_that_they_open_each_read_their_own_back(
    launch: Launch, tmp_path: Path
) -> None:
    ended = launch.run(SCRIPT, "-n", "3", "-p", "asp", "--threads", "1", args=(str(tmp_path),)).completed()
    assert "opened itself" not in ended.err
    names = ["model.pt", "model.pt.ckpt", "model.pth"]
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file() and file.name[:5] == "model") == names
    assert torch.load(tmp_path / "model.pt", weights_only=False).mark == (0, 3)
    for worker in (1, 2):
        own = ended.folder / f"worker-{worker}" / "saved" / tmp_path.resolve().relative_to("/")
        assert sorted(file.name for file in own.iterdir()) == names


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
