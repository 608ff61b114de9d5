"""How `--help` looks: flags in groups, examples, and lines that keep together what belongs together."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training": (
            *("--workers", "--protocol", "--scenario", "--epochs", "--seed", "--seeds", "--shards"),
            *("--compress", "--learning-rate-scale", "--learning-rate-rule"),
        ),
        "when it ends": ("--target", "--stop-at-target", "--max-steps", "--max-seconds", "--drain"),
        "failures": ("--on-loss", "--restart", "--on-divergence", "--report-waits"),
        "this machine": ("--threads", "--devices", "--start", "--isa"),
        "files and output": (
            *("--out", "--record", "--checkpoint", "--saves", "--tee", "--log-to", "--ui", "--progress", "--quiet"),
            *("--json", "--export-markdown", "--export-csv", "--dry-run", "--from", "--steps"),
        ),
        "again": ("--resume", "--config", "--yes"),
        "several machines": (
            *("--listen", "--hosts", "--on", "--ssh", "--address", "--send", "--name", "--shards-on", "--host-timeout"),
            *("--trusted-network", "--emulate-hosts"),
        ),
    }
)
"""By heading, the flags of the commands that have many, in the order of their help. Each command shows those it has."""

TOGETHER = (re.compile(r"(\bdefault:) "), re.compile(r"((?<![^\s(])\d[\d.,:]*) (?=[a-z%])"))
"""Spaces at which no line ends: between `default:` and the value, and between a number and its unit."""
SPACE = "\N{NO-BREAK SPACE}"


class Formatter(argparse.HelpFormatter):
    """Breaks lines at spaces alone, and not at those of `TOGETHER`."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        text = " ".join(text.split())
        for pattern in TOGETHER:
            text = pattern.sub(rf"\1{SPACE}", text)
        lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
        return [line.replace(SPACE, " ") for line in lines]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


def in_groups(parser: argparse.ArgumentParser, examples: Mapping[str, str]) -> str:
    """Return the help of a command with many flags. `examples`: by command line, what it does."""
    formatter = parser.formatter_class(prog=parser.prog)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    words = [action for action in parser._actions if not action.option_strings]
    flags = {action.option_strings[-1]: action for action in parser._actions if action.option_strings}
    sections = {
        "arguments": words,
        **{title: [flags.pop(flag) for flag in those if flag in flags] for title, those in GROUPS.items()},
    }
    for title, actions in {**sections, "help": list(flags.values())}.items():
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    shown = "".join(f"  {line}\n      {does}\n" for line, does in examples.items())
    return formatter.format_help() + (f"\nexamples:\n{shown}" if shown else "")
