"""What a picture of a timeline shows."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from picture import LEFT, PULL, PUSH, RIGHT, STALE, TICKS_AT_MOST, WIDTH, draw

from paceline.errors import ConfigError
from paceline.records.run_model import Stay, Switch
from paceline.records.timeline import (
    AveragingSpan,
    ComputingSpan,
    Timeline,
    TransferSpan,
    VersionMark,
    Waiting,
    WorkerLane,
)

SVG = "{http://www.w3.org/2000/svg}"


def lane(worker: int, left: str | None = "finished") -> WorkerLane:
    return WorkerLane(
        worker=worker,
        stays=(Stay(began=0.0, ended=9.0, left=left),),
        computing=(
            ComputingSpan(began=1.0, ended=3.0, step=0, version=0, made=1),
            ComputingSpan(began=4.0, ended=6.0, step=1, version=1, made=7),
            ComputingSpan(began=6.5, ended=8.0, step=2, version=7, made=None),
        ),
        waiting=(Waiting(began=0.0, ended=1.0), Waiting(began=3.0, ended=4.0)),
        transfers=(
            TransferSpan(began=3.0, ended=3.5, direction="push", number=0, size=10),
            TransferSpan(began=3.5, ended=4.0, direction="pull", number=1, size=10),
        ),
    )


RUN = Timeline(
    protocol="asp",
    began=0.0,
    ended=10.0,
    lanes=(lane(0), lane(1, left="died"), lane(2, left=None)),
    versions=(VersionMark(version=1, at=3.5, updates=1), VersionMark(version=7, at=7.0, updates=1)),
    switches=(),
)


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in parsed(picture).iter(f"{SVG}text")]


def bars(picture: str) -> list[tuple[str, dict[str, str]]]:
    """What a viewer says of each bar, and its attributes."""
    named = ((bar.find(f"{SVG}title"), bar.attrib) for bar in parsed(picture).iter(f"{SVG}rect"))
    return [(title.text or "", attributes) for title, attributes in named if title is not None]


def test_each_lane_names_its_host_if_there_are_several() -> None:
    hosts = {0: "node-0", 1: "a-host-with-a-long-name", 2: "node-2"}
    named = [text for text in texts(draw(replace(RUN, hosts=hosts))) if text not in texts(draw(RUN))]
    assert named == ["node-0", "a-host-wi\u2026", "node-2"]


def test_an_average_names_its_members_hosts_if_there_are_several() -> None:
    one = AveragingSpan(began=1.0, ended=2.0, group=4, members=(0, 1), what="parameters", outcome="finished")
    run = replace(RUN, lanes=tuple(replace(one_lane, averaging=(one,)) for one_lane in RUN.lanes[:2]))

    def said(run: Timeline) -> set[str]:
        return {title for title, _ in bars(draw(run)) if title.startswith("group")}

    assert said(run) == {"group 4 averages parameters of workers 0, 1: finished"}
    on_two = replace(run, hosts={0: "node-0", 1: "far"})
    assert said(on_two) == {"group 4 averages parameters of workers 0, 1 on node-0, far: finished"}


def test_it_is_one_svg_that_needs_no_other_file() -> None:
    root = parsed(draw(RUN))
    assert root.tag == f"{SVG}svg"
    assert {element.tag for element in root.iter()} <= {
        SVG + name for name in ("svg", "title", "style", "g", "rect", "path", "text")
    }
    assert not [word for word in ("href", "url", "@import") if word in draw(RUN)]


def test_each_worker_has_a_lane() -> None:
    assert [text for text in texts(draw(RUN)) if text.startswith("worker")] == ["worker 0", "worker 1", "worker 2"]
    assert len(parsed(draw(RUN)).findall(f"{SVG}g")) == 3


def test_the_same_timeline_is_the_same_picture() -> None:
    assert draw(RUN) == draw(replace(RUN, lanes=tuple(lane for lane in RUN.lanes)))


def test_every_step_and_every_transfer_is_a_bar() -> None:
    said = [title for title, _ in bars(draw(replace(RUN, lanes=(lane(0),))))]
    assert said == [
        "step 0, computed on version 0: its update is version 1, stale by 0",
        "step 1, computed on version 1: its update is version 7, stale by 5",
        "step 2, computed on version 7: never applied",
        "push of step 0",
        "pull of version 1",
    ]


def test_a_bar_is_as_long_as_it_took() -> None:
    drawn = bars(draw(replace(RUN, lanes=(lane(0),))))
    widths = [float(attributes["width"]) for _, attributes in drawn]
    second = widths[0] / 2.0
    assert widths == pytest.approx([2 * second, 2 * second, 1.5 * second, 0.5 * second, 0.5 * second], abs=0.11)
    assert float(drawn[1][1]["x"]) - float(drawn[0][1]["x"]) == pytest.approx(3 * second, abs=0.11)


def test_the_staler_the_darker_and_pushes_and_pulls_have_their_colours() -> None:
    fills = [attributes["fill"] for _, attributes in bars(draw(replace(RUN, lanes=(lane(0),))))]
    assert fills == [STALE[0][2], STALE[3][2], "#d0d0d0", PUSH, PULL]
    brightness = [sum(bytes.fromhex(fill[1:])) for _, _, fill, _ in STALE]
    assert brightness == sorted(brightness, reverse=True)


@pytest.mark.parametrize(("made", "shade"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (99, 4)])
def test_a_shade_begins_where_the_legend_says(made: int, shade: int) -> None:
    step = ComputingSpan(began=1.0, ended=3.0, step=0, version=0, made=made)
    one = replace(RUN, lanes=(WorkerLane(worker=0, stays=(), computing=(step,), waiting=(), transfers=()),))
    assert bars(draw(one))[0][1]["fill"] == STALE[shade][2]


def test_only_the_window_is_drawn_and_bars_end_at_its_edges() -> None:
    drawn = bars(draw(replace(RUN, lanes=(lane(0),)), began=2.0, ended=3.2))
    assert [title[:6] for title, _ in drawn] == ["step 0", "push o"]
    for _, bar in drawn:
        assert float(bar["x"]) >= LEFT
        assert float(bar["x"]) + float(bar["width"]) <= WIDTH - RIGHT + 0.11


def test_a_death_is_named() -> None:
    assert "died" in texts(draw(RUN))


def test_versions_are_numbered() -> None:
    assert {"1", "7"} <= set(texts(draw(replace(RUN, lanes=()))))


def test_a_switch_is_named_and_where_the_protocol_before_ran_dry_is_shaded() -> None:
    switched = replace(RUN, switches=(Switch(to="ssp", since=4.0, at=5.0, why=("",)),))
    assert "ssp from here on" in texts(draw(switched))
    assert len(parsed(draw(switched)).findall(f"{SVG}rect")) == len(parsed(draw(RUN)).findall(f"{SVG}rect")) + 1
    assert "ssp from here on" not in texts(draw(switched, began=6.0))


def test_words_from_elsewhere_cannot_break_it() -> None:
    nasty = replace(
        RUN,
        switches=(Switch(to='<b>&"', since=4.0, at=5.0, why=("",)),),
        lanes=(lane(0, left="<i>"),),
    )
    picture = draw(nasty, title='</title><script>&"')
    assert parsed(picture).findtext(f"{SVG}title") == '</title><script>&"'
    assert '<b>&" from here on' in texts(picture)
    assert "<i>" in texts(picture)


@pytest.mark.parametrize("ended", [1e-4, 0.3, 1.0, 7.0, 60.0, 4000.0])
def test_the_axis_has_a_few_round_numbers(ended: float) -> None:
    written = texts(draw(Timeline(protocol="asp", began=0.0, ended=ended, lanes=(), versions=(), switches=())))
    ticks = [float(text) for text in written[written.index("version made") + 1 : -1]]
    assert 5 <= len(ticks) <= TICKS_AT_MOST + 1
    assert ticks == sorted(set(ticks))
    assert ended * 0.7 < ticks[-1] <= ended


def test_a_window_without_extent_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="from 5 s to 5 s: its end must be after its beginning") as refused:
        draw(RUN, began=5.0, ended=5.0)
    assert "\n" not in str(refused.value)


def test_a_step_s_bar_says_what_copies_to_and_from_the_device_took() -> None:
    first, *rest = lane(0).computing
    one = replace(lane(0), computing=(replace(first, to_device=0.003, from_device=0.0095), *rest))
    said = [title for title, _ in bars(draw(replace(RUN, lanes=(one,)))) if "device" in title]
    assert said == [
        "step 0, computed on version 0: its update is version 1, stale by 0; copies overlap it: 3 ms to the device and "
        "9.5 ms from the device"
    ]
