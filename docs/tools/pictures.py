"""The pictures of `docs/protocols/steps`: the same four workers under each protocol, in virtual time.

    python docs/tools/pictures.py

Everything but the protocol is the same in all of them. The same code makes the same bytes on any machine, as steps have
no jitter. `step-1.svg` and so on are one step of `bsp`, each with a little more of it to be seen.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from picture import HEAD, LANE, LEFT, RIGHT, WIDTH, draw, timeline_of

import paceline
from paceline.records.timeline import Timeline

FOLDER = Path(__file__).parents[1] / "protocols" / "steps"
CLUSTER = {
    "cluster": {"workers": 4, "nodes": 2, "compute": "100ms"},
    "network": {"bandwidth": "80Mbit/s", "message": "100KB", "within_nodes": "80Mbit/s", "between_nodes": "80Mbit/s"},
    "worker": [{"index": 1, "speed": 0.95}, {"index": 2, "speed": 0.9}, {"index": 3, "speed": 0.5}],
}
STEPS = 40
"""Of all workers together: the work of which `sync-switch` does a share under each of its two."""
SECONDS = 1.2
PROTOCOLS = {
    "bsp": "bsp",
    "all-reduce": "all-reduce",
    "asp": "asp",
    "ssp": "ssp:bound=1",
    "dssp": "dssp:lower=1,upper=4",
    "ringmaster": "ringmaster:max_delay=4",
    "quorum": "quorum:m=3",
    "rennala": "rennala:batch=6",
    "balanced": "balanced:every=1",
    "sync-switch": "sync-switch:switch_at=0.2",
    "hsp": "hsp",
    "ps-plus": "ps-plus",
    "local-sgd": "local-sgd:every=3",
    "diloco": "diloco:every=3",
    "async-diloco": "async-diloco:every=3",
    "ad-psgd": "ad-psgd",
    "ripples": "ripples",
}
"""A picture's name: the protocol as it is written for `-p`. In the order of the pages: each changes one thing."""
FRAMES = {1: 0.04, 2: 0.14, 3: 0.18, 4: 0.249, 5: 0.3}
"""A frame's number: the second of the run up to which it shows anything."""
FRAME_SECONDS = 0.3


@cache
def timeline(protocol: str) -> Timeline:
    """What each worker did under that protocol."""
    with tempfile.TemporaryDirectory(prefix="paceline-pictures-") as folder:
        paceline.simulate(CLUSTER, protocol, steps=STEPS, batch=1, out=Path(folder) / "run")
        return timeline_of(Path(folder) / "run" / "ledger.sqlite")


def covered(svg: str, share: float) -> str:
    """The picture with all of its lanes hidden that lies to the right of this share of their width."""
    x = LEFT + share * (WIDTH - LEFT - RIGHT)
    lanes = svg.count(">worker ")
    hidden = (
        f'<rect x="{x:.1f}" y="{HEAD - 24}" width="{WIDTH - 2 - x:.1f}" height="{LANE * lanes + 24}" fill="#ffffff"/>'
    )
    return re.sub(r"</svg>\s*$", hidden + "\n</svg>\n", svg)


def pictures() -> dict[str, str]:
    """Each file's name and what is in it."""
    made = {f"{name}.svg": draw(timeline(written), written, 0.0, SECONDS) for name, written in PROTOCOLS.items()}
    step = draw(timeline("bsp"), "One step under bsp", 0.0, FRAME_SECONDS)
    return made | {f"step-{number}.svg": covered(step, until / FRAME_SECONDS) for number, until in FRAMES.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture)
        print(FOLDER / name)


if __name__ == "__main__":
    main()
