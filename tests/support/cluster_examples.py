"""The commands in `examples/clusters`, and what they need."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

from paceline.cli.main import parser

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTERS = EXAMPLES / "clusters"


def command(file: str) -> list[str]:
    """The words of `paceline run` in that file."""
    text = (CLUSTERS / file).read_text()
    if file.endswith(".sh"):
        (line,) = re.findall(r"^(?:srun|ray) .*$", text, re.MULTILINE)
        words = shlex.split(line)
        words = words[words.index("paceline") :]
    else:
        (line,) = re.findall(r"^ *command: (\[.*\])$", text, re.MULTILINE)
        words = [str(word) for word in json.loads(line)]
    assert words[:2] == ["paceline", "run"]
    return words[1:]


def small(words: list[str]) -> list[str]:
    """The same command for a test, which has fewer cores than a cluster. `paceline run` takes both."""
    parser("run").parse_args(words)
    assert words[-2:] == ["--epochs", "20"]
    words = [*words[:-1], "2"]
    words[words.index("-n") + 1] = "1"
    return words


def lay_out(folder: Path) -> None:
    """What the commands need, below the folder where they begin."""
    (folder / "examples").mkdir()
    shutil.copy(EXAMPLES / "digits.py", folder / "examples")
