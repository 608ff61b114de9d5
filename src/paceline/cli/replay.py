"""`paceline replay`: make a recorded run again, with real processes, in the recorded order, and compare the bits."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.cli.again import add_yes, say_and_ask
from paceline.cli.values import whole
from paceline.errors import EXIT_CODES, FAILED, ConfigError
from paceline.host import hash_seed
from paceline.host.processor import ISAS, can_cap, cap
from paceline.protocols import registry
from paceline.records.reading import open_run, reading
from paceline.records.replay_comparison import Compared
from paceline.records.summary import Summary
from paceline.runs.folders import new_folder
from paceline.runs.replay import compared_with, differences, last_version, replay, script_of
from paceline.runs.script import checked_script

DESCRIPTION = "Make the run in the folder RUN again, with real processes, in the order that its ledger has."


def add_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("run", metavar="RUN", type=Path, help="a run's folder")
    until = "stop at that version, and leave it in the replay's versions/final.safetensors"
    add("--until", type=whole("--until", 1), metavar="VERSION", help=until)
    add("--script", type=Path, metavar="FILE", help="where the script is now (default: where it was)")
    add("--out", type=Path, metavar="DIR", help="the replay's own folder (default: runs/replay-RUN-DATE-TIME)")
    excused = "leave out this scalar or metric, which depends on time (repeatable)"
    add("--except", dest="excused", action="append", default=[], metavar="NAME", help=excused)
    add("--json", action="store_true", help="print the result as one JSON object")
    add_yes(command)
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    recorded = open_run(options.run, registry())
    hash_seed.begin_again_with(hash_seed.recorded(recorded.config, options.run), is_program=options.is_program)
    if can_cap():
        cap(recorded.config.get("isa", ISAS[0]))
    with closing(recorded.ledger):
        if "script" not in recorded.config:
            raise ConfigError(f"{options.run}: it was simulated without a script: there is nothing to compute again")
        with reading(options.run):
            script = checked_script(options.script or script_of(recorded))
            notes = [line for line in (recorded.unended, *differences(recorded, script)) if line]
        if not options.json:
            for line in notes:
                print(f"paceline: {line}")
        newest = last_version(recorded)
        if options.until is not None and options.until > newest:
            raise ConfigError(f"--until is {options.until}; the run's last version is {newest}")
        if options.script is None and not options.yes:
            say_and_ask(script, list(map(str, recorded.config["arguments"])), recorded.config)
        folder = options.out or new_folder(f"replay-{options.run.name}")
        replayed = replay(recorded, script, folder, options.until, json=options.json)
        summary = replayed.summary
        compared = compared_with(recorded, folder, summary, replayed.until, options.excused)
    said = len(notes)
    notes += replayed.notes
    seed = hash_seed.recorded(recorded.config, options.run)
    if compared is not None and not compared.same and (seed is None or seed != hash_seed.of_this_process()):
        notes.append("the hash seed is not the run's, or is not known: the script may have sets in another order")
    if options.json:
        print(json.dumps(_plain(options, folder, notes, summary, compared), indent=2))
    elif compared is None:
        print(summary["outcome"] if summary["error"] is None else f"{summary['outcome']}: {summary['error']}")
    else:
        for line in notes[said:]:
            print(f"paceline: {line}")
        for sentence in compared.sentences:
            print(sentence)
        print(f"{folder}: the replay's ledger and versions")
    if compared is None:
        return EXIT_CODES[summary["outcome"]]
    return 0 if compared.same else FAILED


def _plain(
    options: argparse.Namespace, folder: Path, notes: list[str], summary: Summary, compared: Compared | None
) -> dict[str, Any]:
    """What `--json` prints; `compared` is None if the replay came to no end."""
    differences = [] if compared is None else [one.to_plain() for one in compared.differences]
    last = None if compared is None else compared.last
    return {
        "run": str(options.run),
        "folder": str(folder),
        "same": compared is not None and compared.same,
        "outcome": summary["outcome"],
        "error": summary["error"],
        "until": options.until,
        "except": options.excused,
        "notes": notes,
        "last_version": None if last is None else {"version": last[0], "sha256": last[1]},
        "compared": None if compared is None else compared.counts,
        "difference": differences[0] if differences else None,
        "differences": differences,
    }
