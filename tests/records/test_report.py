"""What a report says of runs: its contents, the page, the figures and the trace that show them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from paceline.core.facts import Fact, StepDeclined, TrainingBegan, UpdateArrived, WorkerResumed
from paceline.protocols import registry
from paceline.records.explain.findings import findings
from paceline.records.explain.sentences import whole_run
from paceline.records.reading import SUMMARY, RecordedRun, open_run
from paceline.records.report import contents as module
from paceline.records.report import figures
from paceline.records.report.compared import labels
from paceline.records.report.contents import (
    Curves,
    WaitMatrix,
    contents,
    drawn,
    page,
)
from paceline.records.report.trace import trace
from paceline.records.run_model import RunModel, Stay
from paceline.records.timeline import (
    ComputingSpan,
    Timeline,
    TransferSpan,
    WorkerLane,
    read_timeline,
)
from paceline.records.waits import WorkerWait
from paceline.scenario.scenario import Kill, Network, Scenario
from records.histories import waits
from support.recorded import simulated

STRAGGLER = Scenario(
    workers=4,
    nodes=2,
    compute=0.05,
    speeds={3: 0.4},
    network=Network(bandwidth=1e7, message=10**5, latency=1e-4, within_nodes=4e7, between_nodes=1e7),
)
PROTOCOLS = ("bsp", "asp", "ssp:bound=2", "sync-switch:switch_at=0.4", "all-reduce", "ad-psgd", "ripples")

Made = Callable[..., RecordedRun]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A simulated run, open; made once for each protocol and name."""
    with ExitStack() as stack:

        @cache
        def make(protocol: str, name: str = "", events: tuple[Kill, ...] = ()) -> RecordedRun:
            folder = tmp_path_factory.mktemp("runs") / (name or protocol)
            simulated(folder, protocol, steps=120, scenario=replace(STRAGGLER, events=events))
            run = open_run(folder, registry())
            stack.enter_context(closing(run.ledger))
            return run

        yield make


def shown(run: RecordedRun, slices: int = 10**6) -> dict[str, Any]:
    """What a report says of this run alone."""
    (one,) = contents([run], slices)["runs"]
    return dict(one)


def timeline_of(run: RecordedRun) -> Timeline:
    return read_timeline(run.ledger, run.history())


def waits_of(run: RecordedRun) -> list[WorkerWait]:
    return list(waits(run.history()))


def waited(*waits: WorkerWait) -> WaitMatrix:
    """Those waits, added up."""
    found = WaitMatrix()
    found.add(waits)
    return found


def wait(worker: int, awaited: int | None, seconds: float) -> WorkerWait:
    return WorkerWait(worker=worker, step=0, began=1.0, ended=1.0 + seconds, awaited=awaited, why=("",), cause=None)


# --- numbers


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_are_the_summarys_or_what_a_crashed_run_s_ledger_amounts_to(
    protocol: str, made: Made, tmp_path: Path
) -> None:
    run = made(protocol)
    one = shown(run)
    summary = dict(run.summary or {})
    summary.pop("evaluations")
    distances = [[distance["at_seconds"], distance["distance"]] for distance in summary.pop("consensus")]
    assert (one["summary"], one["consensus"]) == (summary, distances)
    assert (one["simulated"], one["unended"]) == (True, "")
    assert (one["work"][0], one["work"][-1]) == ([0.0, 0], [pytest.approx(one["ended"]), summary["steps"]])
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(one["work"]))
    shutil.copytree(run.folder, tmp_path / "crashed")
    (tmp_path / "crashed" / SUMMARY).unlink()
    with closing((crashed := open_run(tmp_path / "crashed", registry())).ledger):
        of_crashed = shown(crashed)
    assert "crashed before its end" in of_crashed["unended"]
    assert of_crashed["summary"] == {**summary, "outcome": "crashed"}


def test_metrics_are_there_by_time_and_by_samples(made: Made, tmp_path: Path) -> None:
    run = made("bsp")
    shutil.copytree(run.folder, tmp_path / "evaluated")
    summary = dict(run.summary or {})
    moments = [{"version": 5, "at_seconds": 1.5, "samples": 40}, {"version": 9, "at_seconds": 2.5, "samples": 72}]
    summary["evaluations"] = [{**moments[0], "accuracy": 0.5, "loss": 2.0}, {**moments[1], "accuracy": 0.75}]
    (tmp_path / "evaluated" / SUMMARY).write_text(json.dumps(summary))
    evaluated = open_run(tmp_path / "evaluated", registry())
    with closing(evaluated.ledger):
        assert shown(evaluated)["metrics"] == {"accuracy": [[1.5, 40, 0.5], [2.5, 72, 0.75]], "loss": [[1.5, 40, 2.0]]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("bins", [7, 300])
def test_the_greatest_lead_is_the_summarys(
    protocol: str, bins: int, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BINS", bins)
    run = made(protocol)
    leads = {
        one["worker"]: max(lead for lead in one["lead"] if lead is not None) for one in shown(run)["leads"]["workers"]
    }
    assert leads == {row["worker"]: row["max_lead"] for row in (run.summary or {})["per_worker"]}


def test_a_worker_that_pauses_has_no_lead_and_holds_down_nobody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BINS", 5)
    members = tuple((worker, "here", 0) for worker in range(2))
    facts: list[Fact] = [
        TrainingBegan(members=members, version=0, at=0.0),
        StepDeclined(worker=1, step=0, at=1.0, paused=True),
        UpdateArrived(worker=0, step=0, at=3.0),
        UpdateArrived(worker=0, step=1, at=5.0),
        WorkerResumed(worker=1, at=7.0),
        UpdateArrived(worker=1, step=1, at=9.0),
    ]
    model = RunModel()
    curves = Curves(model, 0.0, 10.0)
    for fact in facts:
        curves.open_until(fact.at)
        curves.record(model.record(fact, ()))
    found = curves.contents([0, 1])["leads"]["workers"]
    assert [one["lead"] for one in found] == [[0, 0, 0, 0, 0], [0, None, None, 0, 1]]


def test_who_has_left_has_no_lead(made: Made) -> None:
    run = made("asp", events=(Kill(worker=1, at=0.5),))
    one = shown(run)["leads"]
    left = next(row["left"]["at"] for row in (run.summary or {})["per_worker"] if row["worker"] == 1)
    leads = one["workers"][1]["lead"]
    last = int((left - one["began"]) / one["width"])
    assert leads[last] is not None
    assert set(leads[last + 1 :]) == {None}
    assert len(leads) == len(one["workers"][0]["lead"]) == module.BINS


# --- who waited for whom


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_matrix_has_every_second_that_was_waited(protocol: str, made: Made) -> None:
    run = made(protocol)
    found, seconds = shown(run)["waits"], defaultdict(float)
    for one in waits_of(run):
        seconds[one.worker] += one.seconds
    for worker, row, other in zip(found["workers"], found["seconds"], found["nobody"], strict=True):
        assert sum(row) + other == pytest.approx(seconds[worker], abs=1e-5)
    if protocol == "bsp":  # all wait for the slow one
        assert all(row[3] == sum(row) > 0 for row in found["seconds"][:3])
        assert sum(found["seconds"][3]) == 0


def test_a_wait_that_nobody_shown_ended_is_in_the_last_column() -> None:
    found = waited(wait(0, 1, 2.0), wait(0, None, 0.5), wait(0, 7, 0.25), wait(7, 0, 9.0)).matrix([0, 1])
    assert found == {"workers": [0, 1], "seconds": [[0.0, 2.0], [0.0, 0.0]], "nobody": [0.75, 0.0]}


def test_of_a_crowd_those_are_shown_who_waited_or_were_awaited_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORKERS", 3)
    assert waited(wait(4, 2, 5.0), wait(1, None, 3.0), wait(0, 3, 1.0)).most(range(6)) == [1, 2, 4]


# --- the timeline


def unpacked(lane: dict[str, Any]) -> list[tuple[int, int, int, int, int]]:
    """(began, ended, step, version, staleness) of each step, in ticks."""
    ended = list(accumulate(gap + length for gap, length in zip(lane["gap"], lane["length"], strict=True)))
    began = [end - length for end, length in zip(ended, lane["length"], strict=True)]
    return list(zip(began, ended, accumulate(lane["step"]), accumulate(lane["version"]), lane["stale"], strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_timeline_has_every_step_transfer_and_group(protocol: str, made: Made) -> None:
    run = made(protocol)
    timeline, packed = timeline_of(run), shown(run)["timeline"]
    assert packed["each"] == 1

    def ticks(at: float) -> int:
        return round((at - timeline.began) / packed["tick"])

    for lane, one in zip(packed["lanes"], timeline.lanes, strict=True):
        steps = [
            (ticks(s.began), ticks(s.ended), s.step, s.version, -1 if s.staleness is None else s.staleness)
            for s in one.computing
        ]
        assert unpacked(lane) == steps
        for way in ("push", "pull"):
            transfers = [(ticks(t.began), t.number) for t in one.transfers if t.direction == way]
            assert list(zip(accumulate(lane[way]["began"]), accumulate(lane[way]["number"]), strict=True)) == transfers
        assert lane["stays"] == [[ticks(stay.began), ticks(stay.ended), stay.left] for stay in one.stays]
    groups = {one.group: list(one.members) for lane in timeline.lanes for one in lane.averaging}
    assert {number: members for number, _, _, members, _ in packed["groups"]} == groups
    assert [to for _, _, to in packed["switches"]] == [switch.to for switch in timeline.switches]
    assert bool(groups) == (run.choice.spec.state == "replicas")


def test_between_two_steps_it_says_who_was_awaited_and_how_long(made: Made) -> None:
    run = made("bsp")
    packed = shown(run)["timeline"]
    for lane in packed["lanes"][:3]:
        assert len(lane["awaited"]) == len(lane["gap"]) + 1
        assert set(lane["awaited"][1:-1]) == {3}
        seconds = sum(one.seconds for one in waits_of(run) if one.worker == lane["worker"] and one.awaited == 3)
        assert sum(lane["waited"]) * packed["tick"] == pytest.approx(seconds, abs=1e-3)
    assert set(packed["lanes"][3]["awaited"]) == {-1}


@pytest.mark.parametrize("protocol", ["ssp:bound=2", "ad-psgd"])
def test_a_long_run_is_thinned_out_into_blocks_of_the_same_sums(protocol: str, made: Made) -> None:
    run = made(protocol)
    timeline, packed = timeline_of(run), shown(run, slices=30)["timeline"]
    steps = sum(len(lane.computing) for lane in timeline.lanes)
    assert packed["each"] == -(-steps // 30)
    assert packed["groups"] == []
    for lane, one in zip(packed["lanes"], timeline.lanes, strict=True):
        blocks = lane["blocks"]
        assert sum(blocks["count"]) == len(one.computing)
        assert len(blocks["count"]) == -(-len(one.computing) // packed["each"])
        computed = sum(step.ended - step.began for step in one.computing)
        assert sum(blocks["computing"]) * packed["tick"] == pytest.approx(computed, rel=1e-3)
        spans = zip(blocks["began"], blocks["ended"], blocks["computing"], blocks["transfer"], strict=True)
        assert all(computing <= ended - began + 1 >= transfer for began, ended, computing, transfer in spans)
        assert all(a <= b for a, b in pairwise(x for pair in zip(blocks["began"], blocks["ended"]) for x in pair))  # noqa: B905


def test_a_run_of_whose_workers_few_are_shown_is_drawn_step_by_step(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORKERS", 2)
    run = made("bsp")
    everything, few = shown(run)["timeline"], shown(run, slices=80)["timeline"]
    assert (few["each"], len(few["lanes"])) == (1, 2)
    assert 40 < sum(len(lane["step"]) for lane in few["lanes"]) <= 80 < run.summary["steps"]  # type: ignore[index]
    assert few == everything


def test_step_by_step_a_timeline_takes_four_megabytes_or_less() -> None:
    number = module.SLICES // 10  # a tenth of the work
    timeline = busy(number)
    assert sum(len(lane.computing) for lane in timeline.lanes) == number
    packed = drawn(timeline, (10, 11))
    assert 5e4 < len(json.dumps(packed, separators=(",", ":"))) < 4e5


def busy(steps: int) -> Timeline:
    """So many steps of two workers, with transfers, and waits of one of them."""
    half = steps // 2
    lanes = tuple(
        WorkerLane(
            worker=worker,
            stays=(Stay(began=0.0, ended=0.3 * half, left="finished"),),
            computing=tuple(
                ComputingSpan(began=0.3 * n + 0.1234567, ended=0.3 * n + 0.2, step=n, version=2 * n, made=2 * n + 11)
                for n in range(half)
            ),
            waiting=(),
            transfers=tuple(
                TransferSpan(began=0.3 * n + at, ended=0.3 * n + at + 0.0987654, direction=way, number=n, size=10**6)
                for n in range(half)
                for at, way in ((0.01, "pull"), (0.2, "push"))
            ),
            waits=tuple(
                WorkerWait(worker=10, step=n, began=0.3 * n, ended=0.3 * n + 0.1, awaited=11, why=("",), cause=n)
                for n in range(half if worker == 10 else 0)
            ),
        )
        for worker in (10, 11)
    )
    return Timeline(protocol="asp", began=0.0, ended=0.3 * half, lanes=lanes, versions=(), switches=())


# --- differences and names


def test_each_run_has_a_name_of_its_own(made: Made) -> None:
    ssp, bsp, again = made("ssp:bound=2"), made("bsp"), made("bsp", name="again")
    assert labels([ssp, bsp]) == ["ssp:bound=2", "bsp"]
    assert labels([bsp, again, ssp]) == ["bsp (bsp)", "bsp (again)", "ssp:bound=2"]
    assert len(set(labels([bsp, bsp, bsp]))) == 3


# --- the page


def embedded(text: str) -> Any:
    """The contents that a page has in it."""
    start = text.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def test_the_page_has_the_contents_names_no_address_and_gives_each_part_an_id_of_its_own(made: Made) -> None:
    told = contents([made("bsp"), made("ad-psgd")])
    text = page(told)
    assert embedded(text) == charted(told)
    assert re.findall(r'\b(?:src|href)="([^"]*)"', text) == ["data:,"]
    template = files("paceline.records.report").joinpath("page.html").read_text()
    assert template.count("http") == 1, "only the namespace of SVG"
    assert "<title>Training with bsp, ad-psgd</title>" in text
    ids = [one or other for one, other in re.findall(r'<[^>]* id="([\w-]+)"|section\("([\w-]+)"', template)]
    assert len(ids) == len(set(ids)) > 9
    assert text.count("The MIT License (MIT)") == 1, "the library that draws curves brings its licence"


def charted(told: dict[str, Any]) -> Any:
    """What the page has as JSON: all but its text."""
    return json.loads(json.dumps({key: value for key, value in told.items() if key not in ("title", "opening")}))


def test_the_verdict_and_the_table_are_text_of_the_page_before_any_script(made: Made) -> None:
    text = page(contents([made("bsp"), made("ssp:bound=2")]))
    before, _, _ = text[text.index("<body>") :].partition("<script")
    assert 'class="verdict">ssp:bound=2 ' in before
    assert before.index('class="verdict"') < before.index('aria-label="The protocols compared"')
    assert before.index('aria-label="The protocols compared"') < before.index("Each run by itself")
    assert "The text and the tables above are all there." in before


def test_a_single_run_begins_with_the_sentences_of_explain(made: Made) -> None:
    run = made("bsp")
    text = contents([run])["opening"].replace("\N{NO-BREAK SPACE}", " ")
    for line in [line for part in whole_run(findings(run)) for line in part]:
        assert f">{escape(re.sub('`', '', line))}</p>" in re.sub("</?code>", "", text)
    assert text.startswith('<p class="verdict">The workers spent ')
    assert "Each run by itself" not in text


def test_runs_that_differ_in_more_than_the_protocol_are_shown_and_not_compared(made: Made) -> None:
    few = made("asp", events=(Kill(worker=1, at=0.5),))
    told = contents([made("bsp"), few])
    assert 'class="remark">These runs differ in more than the protocol, so they are not compared: ' in told["opening"]
    assert "verdict" not in told["opening"]
    assert [run["group"] for run in told["runs"]] == labels([made("bsp"), few])


def test_seeds_of_a_protocol_share_a_group_whose_band_is_drawn(made: Made) -> None:
    told = contents([made("bsp"), made("bsp", name="again"), made("asp"), made("asp", name="more")])
    assert [run["group"] for run in told["runs"]] == ["bsp", "bsp", "asp", "asp"]
    assert "2 runs" in told["opening"], "they share a seed"
    assert told["bands"] == {}, "no metric, no band"


def test_colours_of_waits_have_one_scale_for_all_runs(made: Made, tmp_path: Path) -> None:
    runs = contents([made("bsp"), made("ssp:bound=2")])["runs"]
    runs[0]["waits"]["seconds"], runs[1]["waits"]["seconds"] = [[0.0, 8.0], [0.0, 0.0]], [[0.0, 2.0], [1.0, 0.0]]
    charts = {name: paint for name, _, paint in figures._charts(runs) if name.startswith("waits")}
    for paint in charts.values():
        axes = Figure().add_subplot()
        paint(axes)
        assert axes.images[0].get_clim() == (0, 8.0)


def test_nothing_in_a_run_gets_out_of_its_place_in_the_page(made: Made) -> None:
    told = contents([made("bsp")])
    told["runs"][0]["label"] = "</script><script>alert(1)</script> __DATA__ & __TITLE__"
    text = page(told)
    assert text.count("</script>") == page(contents([made("bsp")])).count("</script>")
    assert embedded(text) == charted(told)


def test_the_name_of_a_folder_is_only_text_in_the_page(made: Made) -> None:
    hostile = "<img src=x onerror=alert(1)>__DATA__"
    text = page(contents([made("bsp"), made("bsp", name=hostile)]))
    assert "<img" not in text
    assert f"bsp ({escape(hostile)})" in text


# --- figures and the trace


def test_each_chart_is_a_figure_of_its_own(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DOTS", 30)
    told = contents([made("ssp:bound=2"), made("ad-psgd")])
    told["runs"][0]["metrics"] = {"top 1/accuracy": [[0.5, 8, 0.1], [1.0, 16, 0.2]]}
    told["runs"][0]["consensus"] = [[0.5, 1.0], [1.0, 2.0]]
    drawn_files = figures.draw(told, tmp_path)
    assert {file.stem for file in drawn_files} == {
        *("top-1-accuracy-time", "top-1-accuracy-samples", "work", "staleness", "consensus"),
        *(f"{chart}-{run}" for chart in ("timeline", "time", "lead", "waits") for run in ("ssp-bound=2", "ad-psgd")),
    }
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn_files)


def test_a_metric_may_be_called_anything_and_each_has_its_file(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "DOTS", 30)
    told = contents([made("ssp:bound=2")])
    names = ("$\\frac$", "a/b", "a?b", "long " * 60)
    told["runs"][0]["metrics"] = {name: [[0.5, None, 0.1], [1.0, None, 0.2]] for name in names}
    stems = {file.stem for file in figures.draw(told, tmp_path)}
    assert stems >= {"frac--time", "a-b-time", "a-b-time-2"}
    assert len(stems) == len(names) + 6
    assert figures.curves(told, names[0])._repr_png_()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_trace_has_every_step_and_slices_of_a_thread_never_overlap(protocol: str, made: Made) -> None:
    run = made(protocol)
    timeline = timeline_of(run)
    events = trace([("first", timeline, run.sentence), ("second", timeline, run.sentence)])["traceEvents"]
    kinds = Counter((event["pid"], event["cat"]) for event in events if event["ph"] == "X")
    assert kinds[0, "compute"] == kinds[1, "compute"] == sum(len(lane.computing) for lane in timeline.lanes)
    assert kinds[0, "transfer"] == sum(len(lane.transfers) for lane in timeline.lanes)
    assert bool(kinds[0, "wait"]) == any(one.seconds > 1e-6 for one in waits_of(run))
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert all(a[1] <= b[0] for slices in threads.values() for a, b in pairwise(sorted(slices)))
    groups = Counter((event["pid"], event["id"], event["ph"]) for event in events if event["ph"] in "be")
    assert set(groups.values()) <= {1}
    assert {group for pid, group, _ in groups if pid == 0} == {
        one.group for lane in timeline.lanes for one in lane.averaging
    }
    names = [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"]
    assert names == ["first", "second"]


def test_the_threads_of_a_trace_name_their_worker_s_host_if_there_are_several() -> None:
    timeline = busy(4)
    hosts = {10: "node-0", 11: "node-1"}

    def named(timeline: Timeline) -> list[str]:
        events = trace([("run", timeline, lambda why, at: "")])["traceEvents"]
        return [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"]

    threads = [f"worker {worker}{of}" for worker in (10, 11) for of in ("", ", push", ", pull")]
    assert named(timeline) == threads
    of_hosts = [f"{hosts[worker]}, worker {worker}{of}" for worker in (10, 11) for of in ("", ", push", ", pull")]
    assert named(replace(timeline, hosts=hosts)) == of_hosts


# --- copies to and from devices


def test_steps_of_the_trace_and_lanes_of_the_page_have_what_copies_took_where_there_were_any() -> None:
    timeline = busy(4)
    lane, other = timeline.lanes
    first, *rest = lane.computing
    first = replace(first, to_device=0.003, from_device=0.009)
    timeline = replace(timeline, lanes=(replace(lane, computing=(first, *rest)), other))
    events = trace([("run", timeline, lambda why, at: "")])["traceEvents"]
    first_args, *others = [event["args"] for event in events if event.get("cat") == "compute"]
    assert (first_args["to_device_seconds"], first_args["from_device_seconds"]) == (0.003, 0.009)
    assert not any("device" in key for args in others for key in args)
    told = drawn(timeline, {10, 11})
    with_copies, without = told["lanes"]
    assert [ticks * told["tick"] for ticks in with_copies["copies"][0]] == pytest.approx([0.003, 0.009])
    assert set(map(tuple, with_copies["copies"][1:])) == {(None, None)}
    assert "copies" not in without
