"""What the page says before its charts, as HTML: the verdict, the tables, remarks. It shows without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.records.optimum import PARTS
from paceline.records.report.compared import ComparedRuns
from paceline.records.report.markup import NONE, Cell, number, paragraph, table
from paceline.records.summary import last_logged, metric_text, metrics_of

PLAIN = "Several workers trained one model together; a protocol decided when each had to wait for the others."
WORDS = {
    "worker": "one process that computes gradients; all train the same model together",
    "step": "one batch of data, turned into one update of the model by one worker",
    "version": "the model between two updates; each update makes the next version",
    "protocol": "the rule that says when a worker may go on, and when it must wait for others",
    "staleness": "how many versions were made by others while a worker computed its update; 0 is fresh",
    "lead": "how many steps a worker has finished more than the slowest one",
    "group": "workers that average their models among themselves, where there is no common one",
    "consensus distance": "how far the workers' own models are from their mean",
}
INTERVAL = (
    "± is half of the 95 % interval of the mean over the seeds, of three seeds or more. Of two seeds the table has the "
    "range. Seconds are the time to the target, or without one the whole run's. Speed-up is against the first protocol."
)


def opening(
    runs: Sequence[Mapping[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
    compared: ComparedRuns,
    explained: Sequence[str],
) -> str:
    """Return the page's first part. `runs`: as `contents` describes them. `explained`: what explains a single run."""
    parts = [paragraph(line, "verdict" if not at else "") for at, line in enumerate(explained)]
    parts += [paragraph(line, "verdict" if compared.is_verdict else "remark") for line in compared.lines]
    if compared.rows:
        parts += [table(compared.heads, compared.rows, "The protocols compared"), paragraph(INTERVAL, "how")]
    else:
        parts.append(paragraph(PLAIN, "how"))
    parts += [paragraph(line, "remark") for run in runs for line in _remarks(run, len(runs) > 1)]
    facts = _facts(runs, summaries)
    parts.append(f"<details><summary>Each run by itself</summary>{facts}</details>" if compared.rows else facts)
    words = "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in WORDS.items())
    return "".join([*parts, f"<details><summary>What the words mean</summary><dl>{words}</dl></details>"])


def _remarks(run: Mapping[str, Any], several: bool) -> list[str]:
    """Say what is particular about how a run was made and is shown."""
    which = f"The run {run['label']}" if several else "This run"
    lines = []
    if run["simulated"]:
        lines.append(
            f"{which} was simulated. Its seconds are virtual: what a model of the machines says, not what a clock "
            "measured."
        )
    lines += [f"{which} was {how}." for how in run["resumed"]]
    if run["unended"]:
        lines.append(f"{which} crashed before its end. What is shown is what its ledger has, up to there.")
    if run["hidden"]:
        workers, shown = len(run["summary"]["per_worker"]), len(run["timeline"]["lanes"])
        lines.append(
            f"{which} had {number(workers)} workers; charts of single workers show the {shown} that had the most to do "
            "with waiting."
        )
    if run["more_metrics"]:
        lines.append(f"{which} logged more than is shown here: {run['more_metrics']} other values have no chart.")
    return lines


def _facts(runs: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the table with a column for each run."""
    both = list(zip(runs, summaries, strict=True))

    def every(key: str) -> list[str]:
        return [number(summary[key]) for summary in summaries]

    rows: list[Sequence[str | Cell]] = [
        [
            Cell("protocol", "With those of its parameters that are not as by default; point at one to see all"),
            *(Cell(run["brief"], run["protocol"], code=True) for run in runs),
        ],
        ["folder", *(Cell(run["folder"], code=True) for run in runs)],
        ["made by", *("simulation" if run["simulated"] else "real processes" for run in runs)],
        ["outcome", *(_outcome(run, summary) for run, summary in both)],
        ["workers", *every("workers")],
        ["seed", *(str(summary["seed"]) for summary in summaries)],
        [
            Cell("wall time", "Seconds from the beginning of training to its end"),
            *(f"{number(of['wall_seconds'])}{' virtual' if run['simulated'] else ''} s" for run, of in both),
        ],
        [Cell("steps applied", "Updates that went into the model"), *every("steps")],
        ["steps per second", *every("steps_per_second")],
        ["samples", *every("samples")],
        ["samples per second", *every("samples_per_second")],
        [Cell("waiting", "Share of all workers' time"), *map(_waiting, summaries)],
        [
            Cell("staleness", "Versions made between the one an update was computed on and the one it went into"),
            *(_stale(summary["staleness"]) for summary in summaries),
        ],
        ["final metrics", *map(_final, summaries)],
    ]
    for target in dict.fromkeys(target for summary in summaries for target in summary["targets"]):
        rows.append([f"first {target}", *(_met(summary["targets"], target) for summary in summaries)])
    rows.append(
        [
            Cell("parameters", "First digits of the SHA-256 of the final parameters; point at one to see it whole"),
            *(_hash(summary["final_parameters_sha256"]) for summary in summaries),
        ]
    )
    return table(["", *(run["label"] for run in runs)], rows, "The runs, one in each column")


def _outcome(run: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if run["unended"]:
        return "crashed before its end"
    return f"{summary['outcome']}: {summary['error']}" if summary["error"] else str(summary["outcome"])


def _waiting(summary: Mapping[str, Any]) -> str:
    rows = summary["per_worker"]
    total = math.fsum(row[f"{part}_seconds"] for row in rows for part in PARTS)
    waited = math.fsum(row["wait_seconds"] for row in rows)
    return f"{waited / total:.{1 if 0 < waited / total < 0.0995 else 0}%}" if total else NONE


def _stale(stale: Mapping[str, Any]) -> str:
    return NONE if stale["mean"] is None else f"mean {stale['mean']:.3g}, most {stale['max']}"


def _final(summary: Mapping[str, Any]) -> str:
    """Return the last version's metrics, and the last logged value of other ones."""
    last = summary["evaluations"][-1] if summary["evaluations"] else {}
    found = {name: last[name] for name in metrics_of([last])}
    found |= {name: row["value"] for name, row in last_logged(summary).items() if name not in found}
    return ", ".join(f"{name} {metric_text(value)}" for name, value in found.items()) or NONE


def _met(targets: Mapping[str, Any], target: str) -> str:
    if target not in targets:
        return NONE
    met = targets[target]
    return "never" if met is None else f"at {number(met['at_seconds'])} s"


def _hash(digest: str | None) -> Cell:
    return Cell(NONE) if digest is None else Cell(digest[:12], digest, code=True)
