"""The script of a run: whether it can be run, and whether it is as it was when a run was made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.files import read_file


def checked_script(script: Path) -> Path:
    """The script, if it can be read and is Python; else raises ConfigError."""
    try:
        source = read_file(script)
    except OSError as error:
        raise ConfigError(f"{script}: {error.strerror}; name the training script to run") from None
    try:
        compile(source, str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{script} is not Python: {getattr(error, 'msg', error)}{where}") from None
    return script


def recorded_script(config: Mapping[str, Any]) -> Path:
    """Where the script of the run with that configuration was."""
    return Path(config.get("directory", ""), config["script"])


def changes(config: Mapping[str, Any], script: Path) -> Iterator[str]:
    """What of the script and its folder is not as it was when the run was made, a line each."""
    if config.get("script_sha256") not in (None, hashlib.sha256(script.read_bytes()).hexdigest()):
        yield f"{script} has changed since the run was made"
    if config.get("directory", str(Path.cwd())) != str(Path.cwd()):
        yield f"the run was made in {config['directory']}: what the script reads by a relative path may be another file"
