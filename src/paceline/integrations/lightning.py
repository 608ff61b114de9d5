"""Lightning's `Trainer` in a run: `Trainer(strategy=PacelineStrategy(), devices=1)`.

Module, optimizer, schedulers and training loader are those of the run. Worker 0 validates, logs and saves. In a script
that runs alone, this is Lightning's strategy for one device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.combined_loader import CombinedLoader

import paceline
from paceline.errors import ConfigError
from paceline.training.prepare import is_in_run, refuse
from paceline.training.process import ScriptProcess


class PacelineStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Trains a LightningModule in the run that its process takes part in."""

    def __init__(self, device: str | torch.device | None = None, **others: Any) -> None:
        """`device`: by default the worker's GPU if there is one, else the processor."""
        super().__init__(device or ("cuda:0" if torch.cuda.is_available() else "cpu"), **others)
        self._in_run = is_in_run("a Lightning Trainer")
        self._trainer: Trainer | None = None
        self._fetcher: _Fetcher | None = None
        if self._in_run:
            self.global_rank = paceline.worker()
            rank_zero_only.rank = paceline.worker()  # Lightning's loggers and messages look at this

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker saves, logs and shows progress for all."""
        return paceline.is_main()

    def setup(self, trainer: Trainer) -> None:
        """As in Lightning. Workers other than 0 neither validate nor keep checkpoints."""
        if self._in_run and trainer.state.fn == TrainerFn.FITTING:
            self._trainer = trainer
            _check(trainer)
            if not paceline.is_main():
                trainer.limit_val_batches = 0
                theirs = (Checkpoint, EarlyStopping)
                trainer.callbacks = [one for one in trainer.callbacks if not isinstance(one, theirs)]
            for callback in trainer.callbacks:
                if isinstance(callback, EarlyStopping):
                    callback.strict = False  # worker 0 may get no batch of an epoch, and then it validates nothing
            trainer.callbacks.append(_ToTheRun())
        super().setup(trainer)

    def on_train_start(self) -> None:
        """Prepare all that the Trainer has made, before its first batch."""
        if self._trainer is None:
            return
        trainer, loops = self._trainer, self._trainer.fit_loop
        loaders = loops._combined_loader.flattened
        if len(self.optimizers) != 1 or len(loaders) != 1:
            _refuse(
                f"{len(self.optimizers)} optimizers and {len(loaders)} training loaders can't be prepared: a run has "
                "one model, one optimizer and one loader"
            )
        clip: dict[str, Any] = {}
        if trainer.gradient_clip_val:
            by_value = trainer.gradient_clip_algorithm == "value"
            clip["clip_grad_value" if by_value else "clip_grad_norm"] = float(trainer.gradient_clip_val)
            trainer.gradient_clip_val = None  # what is clipped is the mean of all workers' gradients
        _, _, loader, *schedulers = paceline.prepare(
            self.lightning_module,
            self.optimizers[0],
            loaders[0],
            *(config.scheduler for config in self.lr_scheduler_configs),
            epochs=trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None,
            keep={"trainer": _Progress(trainer)},
            **clip,
        )
        for config, scheduler in zip(self.lr_scheduler_configs, schedulers, strict=True):
            config.scheduler, config.strict = scheduler, config.strict and paceline.is_main()
        loops._data_fetcher.teardown()
        combined = CombinedLoader(_Share(loader), "max_size")
        combined.limits = [math.inf]
        self._fetcher = _Fetcher(loader)
        self._fetcher.setup(combined)
        loops._combined_loader, loops._data_fetcher = combined, self._fetcher
        loops.max_batches = math.inf  # of this worker's share; nobody knows how many that are
        if trainer.val_check_interval == 1.0:
            trainer.val_check_batch = math.inf
        if paceline.resumed() and trainer.max_epochs is not None and trainer.max_epochs > 0:
            _begin_with(trainer, next(paceline.epochs(trainer.max_epochs), trainer.max_epochs))
        iter(self._fetcher)

    def optimizer_step(self, *arguments: Any, **named: Any) -> Any:
        """As in Lightning. The step of this worker's last batch ends its loop over the loader.

        So Lightning steps a scheduler of epochs between loops. After the last epoch the final version is installed,
        which worker 0 then validates and saves.
        """
        value = super().optimizer_step(*arguments, **named)
        if self._fetcher is not None and self._fetcher.done and self.lightning_module.automatic_optimization:
            self._fetcher.end()
            trainer = self.lightning_module.trainer
            if trainer.current_epoch + 1 == trainer.max_epochs:
                paceline.finish()
        return value


class _Share:
    """The batches that this worker gets, without a length: `len` of the prepared loader counts those of all workers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Fetcher(_PrefetchDataFetcher):  # type: ignore[misc]
    """Knows this worker's last batch without fetching one ahead: a gradient counts for the batch fetched last."""

    def __init__(self, loader: Any) -> None:
        super().__init__(prefetch_batches=0)
        self._loader = loader

    def __next__(self) -> Any:
        item = _DataFetcher.__next__(self)
        self.done = self._loader.last
        return item

    def end(self) -> None:
        """End the loop over the loader, whose last batch was used."""
        next(self.iterator, None)


class _ToTheRun(Callback):  # type: ignore[misc]
    """Brings a Trainer's decisions and values to the run."""

    _told = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *others: Any) -> None:
        """Record worker 0's values in the run's ledger."""
        self._stop_all(trainer)
        if paceline.is_main() and (trainer.global_step % trainer.log_every_n_steps == 0):
            _log(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As after a batch: another callback may have asked for the end."""
        self._stop_all(trainer)
        if not trainer.sanity_checking:
            _log(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop with the run."""
        if ScriptProcess.link is not None and ScriptProcess.link.was_stopped:
            trainer.should_stop = True
        self._stop_all(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the final version. What callbacks have asked for at the last epoch's end comes first.

        After the last epoch it is installed already, and a callback may have put its averages in its place.
        """
        self._stop_all(trainer)
        if ScriptProcess.session is None or ScriptProcess.session.live:
            paceline.finish()

    def _stop_all(self, trainer: Trainer) -> None:
        if trainer.should_stop and not self._told:
            self._told = True
            if ScriptProcess.link is not None and not ScriptProcess.link.was_stopped:
                paceline.stop("the Trainer was asked to stop")


class _Progress:
    """How many steps a Trainer has made, for a run that goes on."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {"global_step": self._trainer.global_step}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        loop = self._trainer.fit_loop.epoch_loop
        steps = loop.automatic_optimization.optim_progress.optimizer.step
        steps.total.ready = steps.total.completed = loop._batches_that_stepped = found["global_step"]


def _begin_with(trainer: Trainer, epoch: int) -> None:
    """Count the epochs before this one as done."""
    for progress in (trainer.fit_loop.epoch_progress.total, trainer.fit_loop.epoch_progress.current):
        progress.ready = progress.started = progress.processed = progress.completed = epoch


def _log(trainer: Trainer) -> None:
    paceline.log(**{name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1})


def _check(trainer: Trainer) -> None:
    """Refuse what takes another loader than the run's, and what counts one worker's batches where it means all."""
    for given, instead in (
        (trainer.fast_dev_run and "fast_dev_run", "shorten the data, or run the script alone"),
        (trainer.overfit_batches and "overfit_batches", "shorten the data"),
        (trainer.limit_train_batches != 1.0 and "limit_train_batches", "shorten the data"),
        (trainer.reload_dataloaders_every_n_epochs and "reload_dataloaders_every_n_epochs", "keep one loader"),
    ):
        if given:
            _refuse(f"a Trainer with {given} can't be trained in a run: {instead}")
    if paceline.workers() == 1:
        return
    for given, instead in (
        (trainer.max_steps > 0 and f"max_steps={trainer.max_steps}", "give max_epochs, or paceline run --max-steps"),
        (
            trainer.val_check_interval != 1.0
            and not isinstance(trainer.val_check_interval, int)
            and f"val_check_interval={trainer.val_check_interval}",
            "give a number of worker 0's batches, as an int",
        ),
    ):
        if given:
            _refuse(f"a Trainer with {given} can't be trained by several workers: {instead}")


def _refuse(line: str) -> None:
    refuse(line)
    raise ConfigError(line)
