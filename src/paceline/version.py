"""Versions of Paceline and torch."""

__version__ = "0.1.0"

TORCH = "2.13.0"
"""The tested version of torch, which `constraints.txt` installs."""
OLDEST_TORCH = "2.6"
"""The oldest supported version of torch, as in `pyproject.toml`."""
