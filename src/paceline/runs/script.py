"""The script of a run: whether it can run, and whether it has changed since a recorded run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.files import read_file


def checked_script(script: Path) -> Path:
    """Return the script. Raises ConfigError if it can't be read or is not Python."""
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
    """Return the path of the script of the run with this configuration."""
    return Path(config.get("directory", ""), config["script"])


def changes(config: Mapping[str, Any], script: Path) -> Iterator[str]:
    """Yield a line for each change of the script and its directory since the run."""
    if config.get("script_sha256") not in (None, hashlib.sha256(script.read_bytes()).hexdigest()):
        yield f"{script} has changed since the run was made"
    if config.get("directory", str(Path.cwd())) != str(Path.cwd()):
        yield f"the run was made in {config['directory']}: what the script reads by a relative path may be another file"
