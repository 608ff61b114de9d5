"""When runs differ in more than their protocol, and what is said of that."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.records.comparable import differences, not_compared

CONFIG: dict[str, Any] = {"seed": 0, "workers": 4, "limits": {"epochs": 8}, "learning_rate_scale": 1.0}


def said(bsp: dict[str, Any], asp: dict[str, Any], allowed: tuple[str, ...] = ()) -> str:
    return not_compared(["bsp", "asp"], [CONFIG | bsp, CONFIG | asp], allowed)


@pytest.mark.parametrize(
    ("bsp", "asp", "told"),
    [
        ({}, {"workers": 2}, "workers 4 (bsp), 2 (asp)"),
        ({}, {"limits": {"epochs": 4}}, "epochs 8 (bsp), 4 (asp)"),
        ({}, {"limits": {}}, "epochs 8 (bsp), not set (asp)"),
        ({"script_sha256": "a" * 64}, {"script_sha256": "b" * 64}, "script aaaaaaaa (bsp), bbbbbbbb (asp)"),
        ({}, {"seed": 7}, "seeds 0 (bsp), 7 (asp)"),
        (
            {},
            {"arguments": ["--lr", "1"], "workers": 2},
            "workers 4 (bsp), 2 (asp); arguments not set (bsp), --lr 1 (asp)",
        ),
        (
            {"targets": ["a>=1"], "stop_at_target": True},
            {"targets": ["a>=2"], "stop_at_target": True},
            "targets a>=1 (bsp), a>=2 (asp)",
        ),
        ({"code": {"data.py": "a"}}, {"code": {"data.py": "b"}}, "code.data.py a (bsp), b (asp)"),
    ],
)
def test_what_differs_beside_the_protocol_is_told_in_one_line(
    bsp: dict[str, Any], asp: dict[str, Any], told: str
) -> None:
    assert said(bsp, asp) == f"These runs differ in more than the protocol, so they are not compared: {told}."


@pytest.mark.parametrize(
    ("bsp", "asp"),
    [
        ({"protocol": {"name": "bsp"}}, {"protocol": {"name": "asp", "config": {"x": 1}}}),
        ({"compress": ""}, {"compress": "fp16"}),
        ({"directory": "/a", "script": "/a/train.py"}, {"directory": "/b", "script": "train.py"}),
        ({"log_to": ["wandb"]}, {"log_to": []}),
        ({"targets": ["a>=1"]}, {"targets": []}),
        ({"environment": {"hosts": {"a": {"boot": "x"}}}}, {"environment": {"hosts": {"a": {"boot": "y"}}}}),
    ],
)
def test_what_has_no_effect_on_the_comparison_is_not_listed(bsp: dict[str, Any], asp: dict[str, Any]) -> None:
    assert said(bsp, asp) == ""


def test_a_comparison_allows_what_it_has_set_by_protocol() -> None:
    assert "learning_rate_scale 4.0 (bsp), 1.0 (asp)" in said({"learning_rate_scale": 4.0}, {})
    assert said({"learning_rate_scale": 4.0}, {}, ("learning_rate_scale",)) == ""


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ([("bsp", 0), ("bsp", 1), ("asp", 1), ("asp", 0)], ""),
        ([("bsp", 0), ("bsp", 1), ("asp", 0)], "seeds 0, 1 (bsp), 0 (asp)"),
        ([("bsp", 0), ("bsp", 1)], ""),
    ],
)
def test_protocols_must_have_the_same_seeds(of: list[tuple[str, int]], told: str) -> None:
    line = not_compared([name for name, _ in of], [{"seed": seed, "hash_seed": seed} for _, seed in of])
    assert line == (f"These runs differ in more than the protocol, so they are not compared: {told}." if told else "")


def test_a_line_names_five_settings_and_counts_the_others() -> None:
    line = said({}, {f"flag{n}": n for n in range(7)})
    assert line.count("not set (bsp)") == 5
    assert line.endswith("; and 2 settings more.")


def test_only_what_differs_is_a_difference() -> None:
    same: dict[str, Any] = {"seed": 1, "limits": {"epochs": 2}, "scenario": {"worker": [{"index": 3, "speed": 0.5}]}}
    other = {"seed": 1, "limits": {}, "scenario": {"worker": [{"index": 3, "speed": 1.0}]}, "arguments": ["-e", "3"]}
    assert differences([same, same]) == []
    assert differences([same, other]) == [
        {"setting": "limits.epochs", "values": ["2", None]},
        {"setting": "scenario.worker[0].speed", "values": ["0.5", "1.0"]},
        {"setting": "arguments", "values": [None, "-e 3"]},
    ]
