"""The one place that says which version this is."""

__version__ = "0.1.0"

TORCH = "2.13.0"
"""The version of torch that this one is tested with (`constraints.txt` installs it)."""
OLDEST_TORCH = "2.6"
"""Older ones are not supported (`pyproject.toml` says so)."""
