"""Protocols that installed packages add by entry points of the group `paceline.protocols`."""

from __future__ import annotations

import dataclasses
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from paceline.core.choice import choose
from paceline.core.machine import Spec
from paceline.errors import ConfigError
from paceline.protocols import GROUP, Registry, asp, bsp, registry

OWN = {"bsp": bsp.SPEC}
THEIRS = dataclasses.replace(asp.SPEC, name="theirs")


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModuleType("theirs_module")
    found.SPEC, found.OTHER, found.NONE = THEIRS, asp.SPEC, 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs_module", found)


def having(*entries: tuple[str, str]) -> Registry:
    return Registry(OWN, tuple(EntryPoint(name, value, GROUP) for name, value in entries))


class Untouched(EntryPoint):
    def load(self) -> None:
        raise AssertionError("it was imported")


def test_a_protocol_of_a_package_is_one_like_the_others() -> None:
    known = having(("theirs", "theirs_module:SPEC"))
    assert list(known) == ["bsp", "theirs"]
    assert choose("theirs", known).spec is THEIRS
    assert (known.broken, known.clashes) == ({}, {})


def test_no_package_is_imported_before_a_protocol_is_asked_for_that_is_none_of_ours() -> None:
    known = Registry(OWN, (Untouched("theirs", "theirs_module:SPEC", GROUP),))
    assert choose("bsp", known).spec is bsp.SPEC


class Exits(EntryPoint):
    def load(self) -> None:
        raise SystemExit("a licence is missing")


def test_a_package_that_ends_the_process_as_it_is_imported_is_a_broken_one() -> None:
    known = Registry(OWN, (Exits("theirs", "theirs_module:SPEC", GROUP),))
    assert list(known) == ["bsp"]
    assert "can't be imported: SystemExit: a licence is missing" in known.broken["theirs"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("there_is_no_such_module:SPEC", "can't be imported: ModuleNotFoundError"),
        ("theirs_module:MISSING", "can't be imported: AttributeError"),
        ("theirs_module:NONE", "is a int; it must be a paceline.core.machine.Spec"),
        ("theirs_module:OTHER", "calls itself asp"),
    ],
)
def test_a_broken_package_names_itself_and_breaks_no_other_protocol(value: str, why: str) -> None:
    known = having(("broken", value), ("theirs", "theirs_module:SPEC"))
    assert list(known) == ["bsp", "theirs"]
    assert choose("theirs", known).spec is THEIRS
    with pytest.raises(ConfigError, match=why) as raised:
        choose("broken", known)
    assert value in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="unknown protocol"):
        choose("brokn", known)


def test_a_name_that_paceline_has_stays_paceline_s_and_that_is_said() -> None:
    known = having(("bsp", "theirs_module:SPEC"))
    assert known["bsp"] is bsp.SPEC
    assert "adds a protocol bsp, and Paceline has one of that name" in known.clashes["bsp"]


def test_a_name_that_two_packages_give_is_nobody_s() -> None:
    known = having(("theirs", "theirs_module:SPEC"), ("theirs", "theirs_module:SPEC"))
    with pytest.raises(ConfigError, match="uninstall one of them"):
        choose("theirs", known)


def test_the_registry_has_all_files_of_the_folder() -> None:
    assert all(isinstance(spec, Spec) and registry()[name] is spec for name, spec in registry().items())
    assert {"asp", "bsp", "all-reduce"} <= set(registry())
