"""TensorBoard: event files in the folder `tensorboard` of the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.ipc.messages.tracker import End, Open, Plain, RunOpened, Values

FOLDER = "tensorboard"


def needs(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the packages that this takes."""
    return ("tensorboard",)


class TensorBoard:
    """See `contract.Tracker`. It does without torch's own writer, since importing torch takes seconds."""

    def open(self, order: Open) -> RunOpened:
        """A run that goes on adds a file to the same folder. TensorBoard shows all files of a folder as one run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(order.folder) / FOLDER
        self._file = EventFileWriter(str(folder))
        self._last = 0
        """The greatest step so far of what the run as a whole has."""
        self._text("parameters", order.parameters)
        self._file.flush()
        return RunOpened(str(folder), f"{folder}; to see it: tensorboard --logdir {folder}")

    def log(self, rows: Sequence[Values]) -> None:
        """Write the values and wait until the file has them, so that a full disk shows here."""
        for row in rows:
            self._last = max(self._last, row.step if row.axis == "updates" else 0)
            self._scalars(row.values, row.step, row.at)
        self._file.flush()

    def end(self, order: End) -> None:
        """Results that are numbers become scalars, the others a table of text."""
        numbers = {name: float(value) for name, value in order.results.items() if isinstance(value, int | float)}
        self._scalars(numbers, self._last, time.time())
        words = {name: value for name, value in order.results.items() if name not in numbers}
        self._text("results", {"outcome": order.outcome, **words})
        self._file.close()

    def _scalars(self, values: Mapping[str, float], step: int, at: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(Summary(value=shown), step, at)

    def _text(self, name: str, rows: Mapping[str, Plain]) -> None:
        """Write a table in Markdown, which TensorBoard shows among its texts."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        cells = [(key, str(value).replace("|", r"\|").replace("\n", " ")) for key, value in rows.items()]
        lines = ["| name | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells)]
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        text = TensorProto(dtype="DT_STRING", string_val=["\n".join(lines).encode()], tensor_shape=shape)
        shown_by = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(Summary(value=[Summary.Value(tag=name, metadata=shown_by, tensor=text)]), 0, time.time())

    def _add(self, summary: Any, step: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._file.add_event(Event(wall_time=at, step=step, summary=summary))
