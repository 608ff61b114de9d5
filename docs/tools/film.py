"""The film of the README: sixteen unequal workers on four machines, sixty faults in sixty seconds, as one SVG file.

    pip install -c constraints.txt pyte
    python docs/tools/film.py --out docs/pictures/film.svg                  # root; three minutes

The machines are network namespaces on this one, with a link of 1 Gbit/s each. Workers die 20 times and come back as
often, 19 times one stalls, and one machine's cable is pulled and put in again: 60 in all. Then the ledger is checked,
and the run is made again from it. What a terminal shows meanwhile is shortened to half a minute, and nothing of it is
retouched.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pyte
from sklearn.datasets import load_digits

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from paceline.net.token import Token, write
from support.namespaces import Network

ROOT = Path(__file__).parents[2]
HOSTS, EACH = 4, 4
SPEEDS = (1, 0.9, 0.7, 0.5)
"""Of a machine's four workers. The last machine's are half as fast."""
SECONDS = 60
DEATHS, STALLS = 20, 19
CUT, CUT_FOR = 31.0, 3.0
"""When the last machine's cable is pulled, and for how long, in seconds of training."""
COLUMNS, LINES = 100, 26
LETTER, LINE, EDGE = 7.8, 16, 12
"""Pixels."""
RATE = 2
"""Frames a second of film."""
COLOURS = {
    "default": "#c9d1d9",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "blue": "#79c0ff",
}
RUN = f"""paceline run -p asp --listen {{address}} --hosts {HOSTS} -n {EACH} --name host-0 --scenario faults.toml \\
    --threads 1 --target 'accuracy>=0.95' --max-seconds {SECONDS} \\
    --out run train.py"""
SCRIPT = """import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

digits = np.load("digits.npz")
images, labels = torch.from_numpy(digits["images"]), torch.from_numpy(digits["labels"])
train, test = TensorDataset(images[360:], labels[360:]), (images[:360], labels[:360])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.no_grad()
def evaluate(model):
    return {"accuracy": (model(test[0]).argmax(dim=1) == test[1]).float().mean().item()}


loader = DataLoader(train, batch_size=32, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1000, evaluate=evaluate)
for _ in paceline.epochs(1000):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
"""scikit-learn's digits, as in `examples/digits.py`. Who comes back does not import scikit-learn first."""
PROMPT = b"\x1b[1;32m$\x1b[0m "


def scenario(seed: int) -> str:
    """Who is how fast, and what befalls whom. No worker of the last machine dies while its cable is out."""
    draw = random.Random(seed)
    lines = ["[cluster]", 'compute = "100ms"', "jitter = 0.1"]
    for worker in range(HOSTS * EACH):
        speed = SPEEDS[worker % EACH] * (0.5 if worker >= (HOSTS - 1) * EACH else 1)
        lines += ["[[worker]]", f"index = {worker}", f"speed = {speed:g}"]
    dying = draw.sample(range(HOSTS * EACH), HOSTS * EACH)
    for number in range(DEATHS):
        at, worker = 3 + number * (SECONDS - 9) / DEATHS, dying[number % len(dying)]
        if worker >= (HOSTS - 1) * EACH and abs(at - CUT) < CUT_FOR + 4:
            worker -= EACH
        lines += ["[[event]]", f"worker = {worker}", f'at = "{at:.1f}s"', "kill = true", 'rejoin_after = "2s"']
    for number in range(STALLS):
        at, worker = 2 + number * (SECONDS - 6) / STALLS, draw.randrange(HOSTS * EACH)
        lines += [
            "[[event]]",
            f"worker = {worker}",
            f'at = "{at:.1f}s"',
            f'for = "{draw.uniform(0.5, 2):.1f}s"',
            "slow = 20",
        ]
    return "\n".join(lines) + "\n"


class Terminal:
    """A terminal of a fixed size, and all that was written to it, with when."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.written: list[tuple[float, bytes]] = []

    def say(self, text: bytes) -> None:
        """Put this on the screen."""
        self.written.append((time.monotonic(), text))

    def run(self, command: str, environment: dict[str, str], folder: Path, enter: Callable[[], None]) -> int:
        """Run a command to its end, as if it had been typed in that folder. Return its exit code."""
        self.say(PROMPT + command.replace("\n", "\r\n").encode() + b"\r\n")
        with subprocess.Popen(
            shlex.split(command.replace("\\\n", " ")),
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment,
            cwd=folder,
            preexec_fn=enter,
        ) as process:
            while process.poll() is None or select.select([self.master], [], [], 0)[0]:
                if select.select([self.master], [], [], 0.1)[0]:
                    self.say(os.read(self.master, 65536))
            return process.returncode


def filmed(folder: Path) -> list[tuple[list[tuple[float, bytes]], float]]:
    """Run, check and replay. Return what the terminal was written in each part, and the part's seconds of film."""
    terminal = Terminal()
    (folder / "faults.toml").write_text(scenario(3))
    (folder / "train.py").write_text(SCRIPT)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.data[order].astype(np.float32) / 16, digits.target[order]
    np.savez(folder / "digits.npz", images=images, labels=labels)
    write(Token.drawn(), folder / "token")
    own = {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "PACELINE_TOKEN_FILE": str(folder / "token")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    unwanted = ("COLUMNS", "LINES", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted} | own | {"PATH": path}
    parts = []

    def film(command: str, seconds: float, enter: Callable[[], None]) -> None:
        code = terminal.run(command, environment, folder, enter)
        if code:
            last = b"".join(text for _, text in terminal.written)[-2000:].decode(errors="replace")
            print(f"exit code {code}: {command}\n{last}", file=sys.stderr)
        parts.append((terminal.written, seconds))
        terminal.written = []

    with Network(HOSTS) as network, ExitStack() as stack:
        address = f"{network.address(0)}:7117"
        for host in range(1, HOSTS):
            joining = subprocess.Popen(
                ["paceline", "join", address, "--wait", "-n", str(EACH), "--name", f"host-{host}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
                preexec_fn=network.enter(host),
            )
            stack.callback(joining.wait)
            stack.callback(joining.terminate)
        threading.Thread(target=_cut, args=(network, folder / "run"), daemon=True).start()
        film(RUN.format(address=address), 21, network.enter(0))
    film("paceline check run", 3, lambda: None)
    film("paceline replay --yes run", 6, lambda: None)
    return parts


def _cut(network: Network, run: Path) -> None:
    """Pull the last machine's cable, and put it in again."""
    while not (run / "ledger.sqlite").exists():
        time.sleep(0.1)
    time.sleep(CUT)
    network.cut(HOSTS - 1)
    time.sleep(CUT_FOR)
    network.mend(HOSTS - 1)


def frames(parts: Sequence[tuple[Sequence[tuple[float, bytes]], float]]) -> Iterator[list[str]]:
    """What the screen looks like at each frame: the lines' SVG."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    for written, seconds in parts:
        began, ended, place = written[0][0], written[-1][0], 0
        for frame in range(1, round(seconds * RATE) + 1):
            until = began + (ended - began) * frame / (seconds * RATE - 1 or 1)
            while place < len(written) and written[place][0] <= until:
                stream.feed(written[place][1])
                place += 1
            yield [_line(screen.buffer[row]) for row in range(LINES)]


def _line(cells: dict[int, pyte.screens.Char]) -> str:
    """A line's text as SVG: a piece for each run of letters that look alike."""
    pieces, at = [], 0
    for (colour, bold, reverse), run in groupby(
        (cells[column] for column in range(COLUMNS)), lambda cell: (cell.fg, cell.bold, cell.reverse)
    ):
        text = "".join(cell.data for cell in run)
        if text.strip():
            lead = len(text) - len(text.lstrip())
            x, fill = EDGE + LETTER * (at + lead), COLOURS.get(colour, COLOURS["default"])
            weight = ' font-weight="bold"' if bold or reverse else ""
            pieces.append(f'<tspan x="{x:.1f}" fill="{fill}"{weight}>{escape(text.strip())}</tspan>')
        at += len(text)
    return "".join(pieces)


def svg(every: Sequence[list[str]]) -> str:
    """All frames on a strip, which moves on by one at a time. A line that comes again is in the file once."""
    width, height = round(2 * EDGE + LETTER * COLUMNS), 2 * EDGE + LINE * LINES
    names: dict[str, str] = {"": ""}
    strip = []
    for number, lines in enumerate(every):
        uses = []
        for row, line in enumerate(lines):
            name = names.setdefault(line, f"l{len(names)}")
            if name:
                uses.append(f'<use href="#{name}" y="{EDGE + LINE * (row + 1) - 4}"/>')
        strip.append(f'<g transform="translate({number * width} 0)">{"".join(uses)}</g>')
    defined = "".join(f'<text id="{name}" xml:space="preserve">{line}</text>' for line, name in names.items() if name)
    seconds, last = len(every) / RATE, (len(every) - 1) * width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">'
        "<title>Sixteen workers, sixty faults in sixty seconds; then check, and replay to the same bits</title>"
        "<style>text { white-space: pre; "
        "font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }"
        f"@keyframes play {{ to {{ transform: translateX(-{len(every) * width}px) }} }}"
        f".strip {{ animation: play {seconds:g}s steps({len(every)}) infinite }}"
        "@media (prefers-reduced-motion: reduce) "
        f"{{ .strip {{ animation: none; transform: translateX(-{last}px) }} }}</style>"
        f'<defs>{defined}</defs><rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
        f'<g class="strip">{"".join(strip)}</g></svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "film.svg")
    parser.add_argument("--keep", type=Path, help="a new folder for the run (default: it is removed)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-film-", ignore_cleanup_errors=True) as name:
        if args.keep is not None:
            args.keep.mkdir(parents=True)
        every = list(frames(filmed(args.keep or Path(name))))
    args.out.write_text(svg([*every, *[every[-1]] * RATE]))
    print(f"{args.out}: {len(every)} frames, {args.out.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
