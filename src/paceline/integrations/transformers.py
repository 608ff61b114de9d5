"""transformers' `Trainer` in a run: `trainer = prepare(Trainer(...))`, and then `trainer.train()`.

Model, optimizer, scheduler and training loader are those of the run. Worker 0 evaluates, logs and saves. In a script
that runs alone, the Trainer stays as it is.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

import paceline
from paceline.errors import ConfigError
from paceline.training.prepare import is_in_run, refuse
from paceline.training.process import ScriptProcess
from paceline.training.replaced import mixed_into

T = TypeVar("T", bound=Trainer)

KEPT = ("global_step", "best_metric", "best_global_step", "best_model_checkpoint", "log_history")
"""What a Trainer's state keeps over an interruption of the run."""


def prepare(trainer: T) -> T:
    """Have this Trainer train in the run that its process takes part in. Return the same object.

    Raises:
        ConfigError: in one line, for what can't be done with several workers.
    """
    if not is_in_run("a Trainer"):
        return trainer
    arguments = trainer.args
    if paceline.workers() > 1:
        for given, instead in (
            (arguments.max_steps > 0 and "max_steps", "give num_train_epochs, or paceline run --max-steps"),
            (arguments.num_train_epochs % 1 and "num_train_epochs with a fraction", "give a whole number of epochs"),
            (arguments.auto_find_batch_size and "auto_find_batch_size", "give per_device_train_batch_size"),
        ):
            if given:
                line = f"a Trainer with {given} can't be trained by several workers: {instead}"
                refuse(line)
                raise ConfigError(line)
    mixed_into(trainer, _PacedTrainer)
    trainer.add_callback(PacelineCallback(trainer))  # after the others, whose wishes it looks at
    return trainer


class _PacedTrainer(Trainer):  # type: ignore[misc]
    """Mixed into the class of the user's own Trainer object."""

    _backwards = 0
    """Batches whose gradients are in the coming step."""
    _kept: _KeptState

    def get_train_dataloader(self) -> Any:
        """Make optimizer and scheduler, too, and prepare them with the model and the loader."""
        loader = _plain(super().get_train_dataloader())
        self.create_optimizer()
        *_, most_steps = self.set_initial_training_values(self.args, loader)
        scheduler = self.create_scheduler(most_steps or 0)
        self._created_lr_scheduler = False  # else the Trainer makes another one, which the run doesn't know
        self._kept = _KeptState()
        *_, loader, self.lr_scheduler = paceline.prepare(
            self.model,
            self.optimizer,
            loader,
            scheduler,
            epochs=math.ceil(self.args.num_train_epochs) if self.args.max_steps <= 0 else None,
            keep={"trainer": self._kept},
            clip_grad_norm=self.args.max_grad_norm or None,
        )
        return loader

    def train(self, resume_from_checkpoint: Any = None, *others: Any, **named: Any) -> Any:
        """As in transformers. A run goes on from its own snapshots."""
        if resume_from_checkpoint:
            line = "resume_from_checkpoint does not go with a run, which keeps snapshots: paceline run --resume RUN"
            refuse(line)
            raise ConfigError(line)
        return super().train(None, *others, **named)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """As in transformers. A loss that is a mean over tokens has their number for its weight."""
        if num_items_in_batch is not None and not self._backwards:
            paceline.weigh(float(num_items_in_batch))
        self._backwards += 1
        return super().training_step(model, inputs, num_items_in_batch)

    def _clip_grad_norm(self, model: Any) -> Any:
        """Return the norm alone. What is clipped is the mean of all workers' gradients, where the optimizer steps."""
        return self.accelerator.clip_grad_norm_(model.parameters(), math.inf)

    def is_local_process_zero(self) -> bool:
        """As `is_world_process_zero`."""
        return paceline.is_main()

    def is_world_process_zero(self) -> bool:
        """Whether this worker prints and logs for all."""
        return paceline.is_main()


class PacelineCallback(TrainerCallback):  # type: ignore[misc]
    """Brings a Trainer's decisions and values to the run. `prepare` adds it to the Trainer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._steps = 0
        """The worker's steps as the epoch began."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on with what an interrupted run had come to."""
        self._trainer._kept.begin(state)
        self._trainer._globalstep_last_logged = self._trainer._initial_global_step = state.global_step

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note where the epoch begins."""
        self._steps = state.global_step

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the step of fewer batches that ends this worker's epoch. The Trainer knows only the last of all."""
        trainer = self._trainer
        if trainer._backwards < trainer.current_gradient_accumulation_steps:
            return
        trainer.optimizer.optimizer.step()
        trainer.lr_scheduler.step()
        trainer.model.zero_grad()
        state.global_step += 1
        trainer._backwards = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Let worker 0 speak for all, and stop all with it."""
        self._trainer._backwards = 0
        self._decide(state, control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop all workers if another callback, such as EarlyStoppingCallback, has asked for it."""
        self._decide(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last epoch install the final version, which worker 0 then evaluates and saves."""
        epoch = math.ceil(state.epoch or 0) if state.global_step > self._steps else round(state.epoch or 0) + 1
        state.epoch = float(epoch)  # the Trainer has counted this worker's batches alone
        if control.should_training_stop and state.global_step == self._steps and not _is_stopped():
            control.should_training_stop = False  # other workers have had all batches of this epoch
        last = epoch >= math.ceil(args.num_train_epochs) or control.should_training_stop or _is_stopped()
        if state.global_step == self._steps and not last:  # other workers, or the run before it went on, had it all
            control.should_log = control.should_evaluate = control.should_save = False
        self._decide(state, control)
        if last:
            control.should_training_stop = True
            control.should_save |= args.save_strategy == IntervalStrategy.STEPS and paceline.is_main()
            paceline.finish()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record worker 0's values in the run's ledger."""
        if paceline.is_main():
            paceline.log(**{name: value for name, value in (logs or {}).items() if isinstance(value, int | float)})

    def _decide(self, state: TrainerState, control: TrainerControl) -> None:
        if not paceline.is_main():
            control.should_log = control.should_evaluate = control.should_save = False
        if control.should_training_stop and not _is_stopped() and state.global_step < state.max_steps:
            paceline.stop("the Trainer's callbacks ask for it")


class _KeptState:
    """What a Trainer's state has that a run keeps. The Trainer makes that state after `prepare`."""

    def __init__(self) -> None:
        self._state: TrainerState | None = None
        self._found: dict[str, Any] = {}

    def begin(self, state: TrainerState) -> None:
        for name, value in self._found.items():
            setattr(state, name, value)
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {} if self._state is None else {name: getattr(self._state, name) for name in KEPT}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        self._found = found


def _is_stopped() -> bool:
    return ScriptProcess.link is not None and ScriptProcess.link.was_stopped


def _plain(loader: Any) -> DataLoader[Any]:
    """Return torch's own loader. Accelerate's fetches a batch ahead, and the Trainer moves batches itself."""
    others = {} if loader.prefetch_factor is None else {"prefetch_factor": loader.prefetch_factor}
    if loader.batch_sampler is None or getattr(loader, "dataset", None) is None:
        raise ConfigError("a Trainer's data must have a length, to be shared out")
    batches = loader.batch_sampler
    if isinstance(getattr(batches, "sampler", None), SeedableRandomSampler):
        # it counts its passes, of which a run that goes on has made none
        batches = BatchSampler(RandomSampler(loader.dataset), batches.batch_size, batches.drop_last)
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
        **others,
    )
