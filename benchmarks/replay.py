"""Twenty real runs of the MNIST example, made again: do they end on the same bits?

    python benchmarks/replay.py --markdown
    python benchmarks/replay.py --data mnist.npz --markdown

Every registered protocol twice, with other seeds: four workers, one of them three times slower; in two of the runs
another one is killed. Each run is replayed by `paceline replay`, which compares the hash of every recorded version and,
where there is a store, the checksum of every version. Prints what was compared, and how long either took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from step import machine, print_table

from paceline.protocols import registry
from paceline.records.summary import read

EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist.py"
CLUSTER = """
[cluster]
workers = 4
nodes = 2
jitter = 0.2
compute = "30ms"
[[worker]]
index = 3
speed = 0.33
"""
DEATH = """
[[event]]
worker = 1
at_step = 10
kill = true
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", metavar="P", default=tuple(registry()), help="default: all")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each (default: 2)")
    parser.add_argument("--max-steps", type=int, default=60, metavar="N", help="steps of a run (default: 60)")
    parser.add_argument("--data", type=Path, metavar="FILE", help="MNIST, as the example takes it (default: digits)")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    about = machine()
    rows = [["protocol", "seed", "killed", "steps", "hashes and checksums", "run, s", "replay, s", "the same bits"]]
    differ = 0
    killed = {args.protocols[0], args.protocols[len(args.protocols) // 2]}  # with the first seed
    with tempfile.TemporaryDirectory(prefix="paceline-replay-") as folder:
        for seed in range(args.seeds):
            for protocol in args.protocols:
                death = seed == 0 and protocol in killed
                run, again = Path(folder) / f"{protocol}-{seed}", Path(folder) / f"{protocol}-{seed}-again"
                cluster = Path(folder) / "cluster.toml"
                cluster.write_text(CLUSTER + (DEATH if death else ""))
                data = ["--data", str(args.data)] if args.data else []
                limit = [] if "switch" in protocol else ["--max-steps", str(args.max_steps)]
                flags = ["-p", protocol, "--scenario", cluster, "--seed", str(seed), "--tee", "none", "--out", run]
                took, _ = timed("run", *flags, *limit, EXAMPLE, "--epochs", "1", *data)
                replayed, printed = timed("replay", "--json", run, "--out", again)
                found = json.loads(printed)
                differ += not found["same"]
                compared = found["compared"] or {"versions": 0, "checksums": 0}
                counts = f"{compared['versions']} + {compared['checksums']}"
                steps = str(read(run / "summary.json")["steps"])
                same = "yes" if found["same"] else found["error"] or json.dumps(found["difference"])
                who, seconds = "worker 1" if death else "", [f"{took:.1f}", f"{replayed:.1f}"]
                rows.append([protocol, str(seed), who, steps, counts, *seconds, same])
                print("  ".join(rows[-1]), file=sys.stderr)
    print(
        f"{about['cores']} cores, torch {about['torch']}; {len(rows) - 1} runs, {differ} of which came out otherwise\n"
    )
    print_table(rows, args.markdown)
    return 1 if differ else 0


def timed(*arguments: object) -> tuple[float, str]:
    """Seconds that the command took, start-up included, and what it printed."""
    began = time.monotonic()
    command = [sys.executable, "-m", "paceline", *map(str, arguments)]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if ended.returncode not in ((0, 3) if "replay" in arguments else (0,)):  # a replay that differs is a result
        raise subprocess.CalledProcessError(ended.returncode, command)
    return time.monotonic() - began, ended.stdout


if __name__ == "__main__":
    sys.exit(main())
