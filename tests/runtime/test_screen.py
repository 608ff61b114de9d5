"""What a terminal shows of a run, at a given width. Nothing runs here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.display.screen import BLOCKS, screen, sparkline
from paceline.display.state import Row, Score, State, View

FOR_3 = State("waiting", "worker 3")
STORE = State("waiting", why="the store")
FOUR = View(
    seconds=65.4,
    steps=400,
    speed=8.0,
    done=0.25,
    until="20 epochs",
    rows=(
        Row(0, 150, 3.0, FOR_3, 3, 1, ("loss", 0.5)),
        Row(1, 150, 3.0, FOR_3, 3, 2, ("loss", 0.7)),
        Row(2, 0, 0.0, State("died"), None, None, None),
        Row(3, 100, 2.0, State("computing"), 0, 0, ("loss", 0.9), awaited_by=2),
    ),
    curve=tuple(2.0 * 0.97**at for at in range(60)),
    scores=(Score("accuracy", None, "accuracy>=0.9"),),
)
SLOW = Row(63, 100, 0.5, State("computing"), 0, 0, ("loss", 0.9), awaited_by=40)
CROWD = replace(
    FOUR,
    rows=(
        *(Row(at, 150 + at % 4, 2.0, State("waiting", "worker 63"), 3, at % 3, ("loss", 0.5)) for at in range(40)),
        *(Row(at, 149, 2.5, State("computing"), 2, 1, ("loss", 0.6)) for at in range(40, 60)),
        *(Row(at, 149, 2.0, STORE, 2, 1, None) for at in range(60, 63)),
        SLOW,
    ),
)


def shown(view: View, width: int = 80, height: int = 24, title: str = "ssp:bound=3") -> list[str]:
    return screen(view, title, "runs/one", width, height).plain.splitlines()


def test_a_screen_has_how_far_it_is_the_loss_a_line_for_each_worker_the_targets_and_the_folder() -> None:
    assert shown(FOUR) == [
        "ssp:bound=3 · 4 workers · 1:05 · 400 steps · 8.0 steps/s",
        "━━━━━━━━━━━╸────────────────────────────────── 25% of 20 epochs, about 3:16 left",
        "loss 0.7 ███▇▇▇▇▆▆▆▆▆▅▅▅▅▅▅▄▄▄▄▄▄▄▄▃▃▃▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁ 0.332 to 2",
        "workers  steps  steps/s  lead  stale  loss",
        "0          150      3.0     3      1   0.5  waiting for worker 3",
        "1          150      3.0     3      2   0.7  waiting for worker 3",
        "2            0      0.0     -      -     -  died",
        "3          100      2.0     0      0   0.9  computing; 2 wait for it",
        "accuracy>=0.9: not evaluated yet",
        "folder: runs/one",
    ]


def test_of_64_workers_those_in_like_state_share_a_line_and_the_one_that_others_wait_for_comes_first() -> None:
    assert shown(CROWD)[3:-2] == [
        "workers   n    steps  steps/s  lead  stale  loss",
        "63        1      100      0.5     0      0   0.9  computing; 40 wait for it",
        "40-59    20      149      2.5     2      1   0.6  computing",
        "0-39     40  150-153      2.0     3    0-2   0.5  waiting for worker 63",
        "60-62     3      149      2.0     2      1     -  waiting: the store",
    ]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("view", [FOUR, CROWD])
def test_no_line_is_wider_than_the_terminal_though_the_protocol_has_a_long_name(view: View, width: int) -> None:
    lines = shown(view, width, title="sync-switch:first=bsp,then=ssp,switch_at=0.25,rescale=none,window=20")
    assert max(map(len, lines)) <= width
    assert lines[0].endswith(f" · {len(view.rows)} workers · 1:05 · 400 steps · 8.0 steps/s")


@pytest.mark.parametrize(("height", "groups"), [(24, 16), (12, 4), (1, 4)])
def test_where_64_workers_wait_for_as_many_others_the_smallest_groups_are_one(height: int, groups: int) -> None:
    pairs = [Row(at, 9, 1.0, State("waiting", f"worker {max(9, at // 2)}"), 0, 0, None) for at in range(64)]
    lines = [line.split() for line in shown(replace(CROWD, rows=tuple(pairs)), height=height) if "waiting" in line]
    assert len(lines) == groups
    assert [line[-1] for line in lines[:3]] == ["9", "others", f"{34 - groups}"]
    assert sum(int(line[1]) for line in lines) == 64
    left = [Row(at, 9, 1.0, State(f"state {at}"), 0, 0, None) for at in range(64)]
    assert shown(replace(CROWD, rows=tuple(left)), height=24)[-3] == "and 48 more workers", "of those who don't wait"
    apart = tuple(Row(at, 9, 1.0, State("pushing" if at % 2 else "computing"), 0, 0, None) for at in range(64))
    cut_off = shown(replace(CROWD, rows=apart))[3]
    assert cut_off == "0, 2, 4, 6,…  32      9      1.0     0      0     -  computing", (
        "names are cut, not what they do"
    )


def test_of_several_that_others_wait_for_it_is_said_and_of_one_how_many() -> None:
    rows = (FOUR.rows[0], replace(FOUR.rows[3], awaited_by=1))
    assert shown(replace(FOUR, rows=rows))[5].endswith("computing; 1 waits for it")
    crowd = (*CROWD.rows, replace(SLOW, worker=64))
    assert shown(replace(CROWD, rows=crowd))[4].endswith("computing; others wait")


def test_before_training_there_is_no_bar_and_no_loss_and_after_it_one_of_evaluations() -> None:
    start = View(2.0, 0, 0.0, None, tuple(Row(at, 0, 0.0, State("starting"), None, None, None) for at in range(2)))
    assert shown(start) == [
        "ssp:bound=3 · 2 workers · 2 s · 0 steps",
        "workers  steps  steps/s  lead  stale  loss",
        "0            0      0.0     -      -     -  starting",
        "1            0      0.0     -      -     -  starting",
        "folder: runs/one",
    ]
    over = replace(FOUR, done=1.0, evaluated=(10, 40))
    assert shown(over)[1] == "━━━━━━━━━━━━━─────────────────────────────────────── 10 of 40 versions evaluated"
    assert shown(replace(over, evaluated=(40, 40)))[1].endswith("━ 100% of 20 epochs")


def test_a_target_that_is_met_says_when_and_any_other_the_best_so_far() -> None:
    scores = (Score("accuracy", 0.93, "accuracy>=0.9", 12.34), Score("loss", 0.31, "loss<=0.2"))
    assert shown(replace(FOUR, scores=scores))[-2] == (
        "accuracy>=0.9: after 12.3 s, best 0.93 · loss<=0.2: best 0.31 so far"
    )
    assert shown(replace(FOUR, scores=(Score("accuracy", 0.93), Score("f1", 0.5))))[-2] == "accuracy 0.93 · f1 0.5"


def test_a_loss_that_is_not_finite_is_said_and_a_terminal_too_narrow_for_a_curve_has_none() -> None:
    rows = (Row(0, 9, 1.0, State("computing"), 0, 0, ("loss", math.nan)),)
    assert shown(replace(FOUR, rows=rows, curve=()))[2] == "loss nan"
    assert shown(FOUR, width=20)[2] == "loss 0.7  0.332 to 2"


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ((1.0, 2.0), 0, ""),
        ((3.0, 3.0), 8, BLOCKS[0] * 2),
        ((0.0, 7.0, 3.0), 8, "▁█▄"),
        ((0.0, 2.0, 6.0, 8.0), 2, "▁█"),
        (tuple(range(8)), 8, BLOCKS),
    ],
)
def test_a_sparkline_has_a_block_for_each_value_or_for_the_mean_of_some(
    values: tuple[float, ...], width: int, line: str
) -> None:
    assert sparkline(values, width) == line
