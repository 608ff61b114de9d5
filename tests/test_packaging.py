"""What is built from this folder, what is in it, and that it works where only it is installed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.version import __version__
from support.events import LONG
from support.scripts import training

ROOT = Path(__file__).parents[1]
BARE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def built(kind: str, source: Path, to: Path) -> Path:
    """The sdist or wheel of that folder. Nothing is downloaded for it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    subprocess.run(command, cwd=source, env=BARE, check=True, stdout=subprocess.DEVNULL)
    (file,) = to.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return file


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"paceline-{__version__}"


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist makes."""
    return built("wheel", sources, tmp_path_factory.mktemp("wheel"))


NOT_OURS = ("__pycache__", "build", "dist")
"""Folders that come of work in this one (.gitignore names them); so do those whose names begin with a dot."""


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if not any(part in NOT_OURS or part[0] == "." for part in path.parts)}


def test_the_wheel_has_the_package_s_files_and_no_others_and_takes_at_most_1260_kb(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"paceline-{__version__}.dist-info/")}
    assert names == {f"paceline/{name}" for name in files(ROOT / "src" / "paceline")}
    assert wheel.stat().st_size <= 1_260_000


def test_the_sdist_has_what_the_makefile_s_targets_need(sources: Path) -> None:
    for folder in ("src", "tests", "docs", "examples", "benchmarks"):
        assert files(sources / folder) == files(ROOT / folder)
    beside = {"Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"}
    assert beside <= {path.name for path in sources.iterdir()}


def test_the_wheel_says_where_it_is_from_and_needs_what_the_project_does(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        said = HeaderParser().parsestr(archive.read(f"paceline-{__version__}.dist-info/METADATA").decode())
    assert said["Version"] == __version__
    assert [url.partition(", ")[0] for url in said.get_all("Project-URL", [])] == list(project["urls"])
    needed = {need for need in said.get_all("Requires-Dist", []) if "extra ==" not in need}
    assert needed == set(project["dependencies"])


def test_the_versions_of_python_that_are_claimed_are_those_that_the_workflow_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    (matrix,) = re.findall(r"python-version: (\[.*\])", (ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert ast.literal_eval(matrix) == claimed
    assert project["requires-python"] == f">={claimed[0]}"


def test_what_is_cited_and_packaged_has_this_version_and_the_documentation_s_address() -> None:
    (home,) = re.findall(r"^  repository: &repository (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in cited
    assert f'\nrepository-code: "{home}"\n' in cited
    assert urls["Source"] == home
    assert all(url.startswith(home) for url in urls.values())


def test_the_image_runs_what_make_demo_runs() -> None:
    (command,) = re.findall(r"\$\(BIN\)/(paceline compare(?:.*\\\n)*.*)", (ROOT / "Makefile").read_text())
    (given,) = re.findall(r"^CMD (\[(?:.*\\\n)*.*\])$", (ROOT / "Dockerfile").read_text(), re.M)
    words = command.replace("\\\n", " ").replace("'", "").split()
    assert ast.literal_eval(given.replace("\\\n", "")) == words


def test_the_image_gets_every_file_that_the_dockerfile_copies() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    let_through = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert sorted(" ".join(copied).split()) == sorted(let_through)
    assert all((ROOT / name).exists() for name in let_through)


@pytest.mark.real_run
@pytest.mark.long
def test_in_a_clean_environment_the_wheel_trains_checks_and_reports(wheel: Path, tmp_path: Path) -> None:
    """What it depends on is not installed again: it is found where it lies beside this interpreter."""
    needs = [
        re.split(r"[^\w-]", need)[0]
        for need in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    places = {str(Path(str(spec.origin)).parents[1]) for name in needs if (spec := find_spec(name.replace("-", "_")))}
    venv.create(tmp_path / "clean", symlinks=True)
    python = tmp_path / "clean" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "clean" / "lib" / version / "site-packages" / "needs.pth").write_text("\n".join(sorted(places)))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, env=BARE, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "train.py").write_text(training())

    def printed(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=BARE, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = printed(str(python), "-c", "import paceline; print(paceline.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path / "clean")
    paceline = str(python.with_name("paceline"))
    assert printed(paceline, "--version") == f"paceline {__version__}\n"
    assert "2 workers" in printed(paceline, "run", "-n", "2", "-p", "ssp", "--out", "run", "train.py")
    assert printed(paceline, "check", "run")
    printed(paceline, "report", "run", "--out", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
