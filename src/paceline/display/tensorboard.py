"""Writes logged values and evaluations for TensorBoard: a folder for each worker, and one for versions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""The folder in the run's folder."""


class TensorBoard:
    """Writes scalars. Make it after the zygote is forked, as each file has a thread."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make = SummaryWriter
        self._folder = folder / FOLDER
        self._writers: dict[str, Any] = {}

    def logged(self, worker: int, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer(f"worker-{worker}").add_scalar(name, value, step)

    def evaluated(self, version: int, ago: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a version that was made `ago` seconds ago."""
        for name, value in metrics.items():
            self._writer("versions").add_scalar(name, value, version, walltime=time.time() - ago)

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._make(str(self._folder / name))
        return self._writers[name]
