"""What is in a tracker, read by its own means. `python tracker_readers.py NAME FOLDER RUN` prints it as JSON.

Libraries of trackers start threads and processes, so tests import none of them.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Tracked(NamedTuple):
    """One run of a tracker."""

    name: str | None
    group: str | None
    project: str | None
    parameters: dict[str, Any]
    """As text where the tracker keeps text."""
    series: dict[str, list[tuple[int, float]]]
    """By name: step and value, in the order in which they were logged."""
    results: dict[str, Any]
    ends: list[str]
    """How the run ended, each time."""


def of_tensorboard(folder: Path, run: str) -> Tracked:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    series = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    tables: dict[str, list[dict[str, str]]] = {"parameters": [], "results": []}
    for tag in events.Tags()["tensors"]:
        for one in events.Tensors(tag):
            rows = one.tensor_proto.string_val[0].decode().splitlines()[2:]
            tables[tag].append(dict(row[2:-2].split(" | ", 1) for row in rows))
    final = {name: values[-1][1] for name, values in series.items() if name.startswith("final/")}
    return Tracked(
        name=None,
        group=None,
        project=None,
        parameters={name: value for table in tables["parameters"] for name, value in table.items()},
        series={name: values for name, values in series.items() if name not in final},
        results=final | {name: value for table in tables["results"] for name, value in table.items()},
        ends=[table["outcome"] for table in tables["results"]],
    )


BLOCK = 32 * 1024


def records(file: Path) -> Iterator[bytes]:
    """The records of a file of wandb's, which is a log as LevelDB writes it, after seven bytes of its own."""
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def of_wandb(folder: Path, run: str) -> Tracked:
    """All offline runs below the folder with that id, as `wandb sync` would put them together."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = Tracked(None, None, None, {}, defaultdict(list), {}, [])
    axes: dict[str, str] = {}
    for file in sorted(folder.rglob(f"run-{run}.wandb")):
        for data in records(file):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                begun = record.run
                assert begun.run_id == run
                found = found._replace(name=begun.display_name, group=begun.run_group or None, project=begun.project)
                found.parameters.update(updated(begun.config))
            elif kind == "config":
                found.parameters.update(updated(record.config))
            elif kind == "metric" and record.metric.step_metric:
                axes[record.metric.name] = record.metric.step_metric
            elif kind == "history":
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for name, value in row.items():
                    if name in axes:
                        found.series[name].append((row[axes[name]], float(value)))
            elif kind == "summary":
                found.results.update(updated(record.summary))
            elif kind == "exit":
                found.ends.append(str(record.exit.exit_code))
    return found._replace(series=dict(found.series))


def updated(record: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.update}


def of_mlflow(folder: Path, run: str) -> Tracked:
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    found = client.get_run(run)
    series = {
        name: [(one.step, one.value) for one in client.get_metric_history(run, name)] for name in found.data.metrics
    }
    final = {name: values[-1][1] for name, values in series.items() if name.startswith("final/")}
    tags = {name.removeprefix("paceline."): value for name, value in found.data.tags.items() if name[:9] == "paceline."}
    return Tracked(
        name=found.info.run_name,
        group=tags.pop("group", None),
        project=client.get_experiment(found.info.experiment_id).name,
        parameters=found.data.params,
        series={name: values for name, values in series.items() if name not in final},
        results=final | tags,
        ends=[found.info.status],
    )


READERS = {"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}

if __name__ == "__main__":
    print(json.dumps(READERS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])))
