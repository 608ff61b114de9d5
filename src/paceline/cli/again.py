"""`paceline run --config` and `--resume`: the flags that made a run, read from its `config.toml`.

The values become words of the command line, so a wrong value is reported like that of a flag.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core.choice import nearest
from paceline.errors import ConfigError
from paceline.files import read_file, read_record
from paceline.protocols import registry
from paceline.records import kept
from paceline.records.folders import CONFIG
from paceline.records.segments import choice_of
from paceline.runs.script import recorded_script
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import from_plain, load
from paceline.terminal import say
from paceline.version import __version__

RESUME = "--resume"
FLAGS = (
    *("workers", "threads", "devices", "isa", "seed", "start", "record", "on_loss", "restart", "on_divergence"),
    *("saves", "checkpoint", "compress", "learning_rate_scale", "host_timeout", "shards_on"),
)
"""Keys of a configuration that each are one flag, of the same name."""
OF_THE_SCRIPT = ("shards", "epochs")
"""Flags that the script's `prepare` may have set. A script that the user names sets them itself."""
LIMITS = ("max_steps", "max_seconds")
OTHERS = (
    *("paceline", "script", "directory", "script_sha256", "arguments", "protocol", "buffers", "evaluates", "targets"),
    *("stop_at_target", "hosts", "clip_grad_norm", "clip_grad_value"),
    *("limits", "environment", "simulated", "scenario", "code"),
    "hash_seed",
)
"""All other keys."""


def source(options: argparse.Namespace) -> tuple[Path, str] | None:
    """Return the configuration that the flags name, and the flag that names it. None if there is none."""
    if options.resume is not None:
        return options.resume / CONFIG, RESUME
    return None if options.config is None else (options.config, "--config")


def recorded(path: Path, flag: str = "--config") -> dict[str, Any]:
    """Return the configuration in this file, or in this run's folder. Raises ConfigError, in one line."""
    file = path / CONFIG if path.is_dir() else path
    try:
        config = tomllib.loads((read_file if file == path and flag != RESUME else read_record)(file).decode())
    except OSError as error:
        if flag == RESUME:
            why = f"there is no run ({file}: {error.strerror}); name a run's folder"
            raise ConfigError(f"{flag} {path.parent}: {why}") from None
        raise ConfigError(f"{flag} {file}: {error.strerror}; name a run's {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} {file}: no configuration can be read there ({error})") from None
    known = (*FLAGS, "shards", *OTHERS)
    missing = next((key for key in ("paceline", "protocol", "workers") if key not in config), None)
    if missing is not None:
        raise ConfigError(f"{flag} {file}: it is no run's configuration, as it has no {missing}; name a run's {CONFIG}")
    if config["paceline"] != __version__:
        way = "go on with it under that version" if flag == RESUME else "give what it says as flags"
        raise ConfigError(
            f"{flag} {file}: it was written by Paceline {config['paceline']}, and this is {__version__}; {way}"
        )
    if config.get("simulated"):
        real = "the folder" if flag == RESUME else f"the {CONFIG}"
        raise ConfigError(f"{flag} {file}: that run was simulated or replayed; name {real} of a real run")
    if strange := next((key for key in config if key not in known), None):
        raise ConfigError(f'{flag} {file}: unknown key "{strange}"{nearest(strange, known)}')
    return config


def words(options: argparse.Namespace, given: Sequence[str], parse: Callable[[Sequence[str]], object]) -> list[str]:
    """Return the given words with the recorded run's flags before them, so that a given flag wins.

    `options` were parsed from `given`. `parse` is tried on the run's flags alone.
    """
    if (named := source(options)) is None:
        return list(given)
    config, name = recorded(*named), f"{named[1]} {named[0]}"
    tables = () if options.scenario is None else load(options.scenario).host_tables
    if len(tables) == 1 or getattr(options, "emulate_hosts", None) == 1:
        config = config | {"shards_on": ""}  # one host has the whole store
    if tables:
        config = config | {"workers": None, "hosts": 1}  # the given tables say how many there are
    elif any(getattr(options, flag, None) is not None for flag in ("listen", "on")):
        config = config | {"workers": None, "hosts": 1, "scenario": {}}  # the hosts that join do
    try:
        before = list(_flags(config, options))
        script = [] if options.script is not None else [str(script_of(config)), *map(str, config["arguments"])]
        before += [] if script else ["--yes"]  # the user has named the script
        parse([*before, *script])
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{name}: no run can be made of it ({type(error).__name__}: {error})") from None
    return [*before, *given, *script]


def scenario(path: Path, flag: str) -> Scenario:
    """Return the configuration's scenario. Without host tables, `--emulate-hosts` says how many hosts it has."""
    config = recorded(path, flag)
    found = from_plain(config.get("scenario", {}), f"{flag} {path}")
    return found if found.host_tables or config.get("hosts", 1) == 1 else replace(found, nodes=1)


def _flags(config: Mapping[str, Any], options: argparse.Namespace) -> Iterator[str]:
    limits, hosts = config.get("limits", {}), config.get("hosts", 1)
    if config.get("scenario", {}).get("host"):  # its tables say how many hosts and workers there are
        config = {**config, "workers": None}
    elif hosts != 1:
        config = {**config, "workers": config["workers"] // hosts}
        yield f"--emulate-hosts={hosts}"
    yield f"--protocol={choice_of(config, registry())}"
    keys = [*FLAGS, *(OF_THE_SCRIPT if options.script is None else ())]
    if options.resume is None:  # the limit that ended the run must not end what follows
        keys += LIMITS
    for key in keys:
        value = limits.get(key) if key in (*LIMITS, "epochs") else config.get(key)
        if value not in (None, ""):
            yield f"--{key.replace('_', '-')}={value}"
    if config.get("stop_at_target", False) is True:
        yield "--stop-at-target"
    if not options.target:
        yield from (f"--target={target}" for target in config.get("targets", ()))


def script_of(config: Mapping[str, Any]) -> Path:
    """Return the path of the run's script, relative if the run was made in this directory."""
    same = config.get("directory", str(Path.cwd())) == str(Path.cwd())
    return Path(config["script"]) if same else recorded_script(config)


def add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="run the recorded script without asking")


def say_and_ask(script: Path, arguments: Sequence[str], config: Mapping[str, Any]) -> None:
    """Print which script the configuration names, and ask on a terminal. Raises ConfigError if the answer is no."""
    digest = hashlib.sha256(read_file(script)).hexdigest()
    same = "as recorded" if digest == config.get("script_sha256") else "not as recorded"
    pickled = script.with_name(kept.PICKLE)
    loads = f", which unpickles {pickled}" if script.name == kept.SCRIPT and pickled.is_file() else ""
    line = f"the run names this script: {shlex.join([str(script), *arguments])}{loads} (SHA-256 {digest}, {same})"
    say(line)
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print("paceline: it can do all that you can. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError("the script is not run; look at it first, or give --yes")
