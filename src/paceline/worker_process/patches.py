"""What a script finds replaced in a worker's process, and why: the whole list.

**Functions** are in `REPLACED`. Those that concern files, signals and clipping are replaced before the script runs, the
others by `prepare`. So a script, or a framework that it uses, stays as it is, however it has imported them.
`training.replaced` replaces them, and puts them back.

**Objects** that a script hands to `prepare` stay the same objects, or look the same:

| object | what becomes of it | why |
|---|---|---|
| optimizer | its class gets the methods of `training.optim.optimizer.PacedOptimizer` | `step()` pushes its gradient |
| `optimizer.state` | `training.optim.optimizer_state.NewestState` | the store has it, and the script may look at it |
| loader | a copy of the same class: `training.data.loader_view.as_prepared` | its batches are shared out |
| scheduler | its class gets the `step()` of `training.optim.schedules` | it follows the run, not this worker |
| model | hooks of its parameters, and of all modules' registrations | gradients and new structure are noticed |
| all optimizers | a hook after steps: `training.optim.other_training` | steps that reach no other worker are refused |
| torch's compiler | an import hook, until a script imports it: `training.uncompiled` | our functions are not compiled |
| `wandb`, `mlflow` | an import hook, then `init`, `start_run`: `script_trackers` | worker 0 alone makes a run |

Under `-p ddp` no function is replaced. `runs.ddp` wraps the model in DDP, and gives the loader a
DistributedSampler. The loader is a copy, schedulers follow, and the process is as below, but keeps its variables.

**The process** is as if the script had been started by itself. `worker_process.worker` changes the working directory,
`sys.argv`, `sys.path[0]`, `__main__` and the standard streams. It takes the variables of `OF_ONE_PROCESS` away, says
which GPUs are seen (`host.devices`) and how many threads compute, and seeds what the script draws. What was registered
for the launcher's end is left to the launcher (`interpreter`). Each step and each fetch is seeded by
`training.seeding`.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from paceline.training.model.state_dicts import STATE_DICTS
from paceline.training.optim.clipping import CLIPPING
from paceline.training.optim.schedules import PLATEAUS
from paceline.training.replaced import Patch, replace
from paceline.training.signals import HANDLERS
from paceline.worker_process import file_functions as by
from paceline.worker_process.file_functions import WorkerFiles
from paceline.worker_process.ownership import Witness

_PT = (torch, torch.serialization)
_F, _FILENAME, _PATH = (partial(by.reading, parameter=name) for name in ("f", "filename", "path"))

FILES_OF_EVERY_WORKER = (
    Patch(_PT, ("save",), partial(by.saving, parameter="f"), "files are whole"),
    Patch((safetensors.torch,), ("save_file",), partial(by.saving, parameter="filename"), "files are whole"),
    Patch((os,), ("mkdir",), by.making, "a folder that another worker has just made is there for all"),
    Patch((os,), ("remove", "unlink"), by.removing, "no worker takes another's file away, or misses one"),
    Patch((os.path,), ("getsize", "getmtime", "getctime"), by.measuring, "no worker misses a file of another's"),
)
"""What each makes of a function and of this worker's files. The first worker saves whole files, and shares folders."""
FILES_OF_THE_OTHERS = (
    Patch((os,), ("rmdir",), by.removing, "no worker takes another's folder away"),
    Patch((shutil,), ("rmtree",), by.emptying, "no worker takes another's folder away"),
    Patch((os,), ("rename", "replace"), by.moving, "no worker takes another's file away, or overwrites one"),
    Patch((shutil,), ("move",), by.moving, "no worker takes another's file away, or overwrites one"),
    Patch((os,), ("link", "symlink"), by.linking, "a path that another worker has taken is no error"),
    Patch((shutil,), ("copyfile", "copy", "copy2"), by.copying, "no worker overwrites another's file"),
    Patch((shutil,), ("copytree",), by.copying_all, "no worker overwrites another's file"),
    Patch((builtins, io), ("open",), by.Opening, "no worker overwrites another's file, and each finds its own"),
    Patch(_PT, ("load",), _F, "a worker finds its own file"),
    Patch((safetensors, safetensors.torch), ("safe_open",), _FILENAME, "a worker finds its own file"),
    Patch((os.path,), ("isfile",), _PATH, "a worker finds its own file"),
    Patch((Path,), ("is_file",), by.asking, "a worker finds its own file"),
    Patch((os.path,), ("exists",), by.asking_for_any, "a worker finds its own file or folder"),
    Patch((Path,), ("exists",), by.asking_for_any, "a worker finds its own file or folder"),
    Patch((os.path,), ("isdir",), by.asking_for_folders, "a worker finds its own folder"),
    Patch((Path,), ("is_dir",), by.asking_for_folders, "a worker finds its own folder"),
)
"""The same of all workers but the first: what they save is in a folder of their own. See `saves` and `ownership`."""
REPLACED = (
    *FILES_OF_EVERY_WORKER,
    *FILES_OF_THE_OTHERS,
    *HANDLERS,  # signal.signal and getsignal, faulthandler.register and unregister
    *CLIPPING,  # torch.nn.utils.clip_grad_norm_ and its like
    *PLATEAUS,  # ReduceLROnPlateau.step
    *STATE_DICTS,  # nn.Module.state_dict
)


def replaced_in(files: WorkerFiles) -> list[Patch]:
    """Return what is replaced of functions that read and write files, in this worker. Listing and `stat` are not."""
    rows = FILES_OF_EVERY_WORKER if files.first else (*FILES_OF_EVERY_WORKER, *FILES_OF_THE_OTHERS)
    return [row._replace(by=partial(row.by, files)) for row in rows]


def one_writer(files: WorkerFiles) -> None:
    """Have worker 0 alone write where the script says, in this process and in what is forked from it."""
    replace(replaced_in(files))
    sys.addaudithook(Witness(files.ownership))
