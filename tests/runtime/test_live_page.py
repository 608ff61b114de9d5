"""The live page: who may see it, what it is told, what it costs the run while nobody looks, and how it ends."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.cli.main import main, parser
from paceline.display.live import MOST_CURVES, MOST_ROWS, About, LoggedCurves, told
from paceline.display.page_feed import PageFeed
from paceline.display.state import Curve, Row, Score, State, View
from paceline.notebook.flags import parsed, words
from paceline.records.ledger import read_facts
from paceline.records.reading import tally_of
from paceline.records.run_model import RunModel
from paceline.records.summary import Tally
from paceline.records.waits import WaitSums
from paceline.runs import ui
from paceline.runs.followed import LedgerFollower
from paceline.runs.ui import Events, FolderSource, RunSource, Server, listen, page
from support.browser import PROGRAM, Browser
from support.events import said
from support.launch import Launch
from support.run_state import Stage
from support.runs import Launcher, ended
from support.scripts import training

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOKEN = "the-token"
HOSTILE = "<img src=x onerror=alert(1)>&\"'"
"""A folder's name."""


class Said:
    """A source that has one event."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def events(self, run: str | None) -> Events:
        self.asked.append(run)
        yield b'{"one":1}'
        yield None
        yield b'{"two":2}'


@contextmanager
def serving(source: Any) -> Iterator[int]:
    """A server of that source, in threads of this process: its port."""
    with Server(listen(0, "--port"), TOKEN, source) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, path: str, method: str = "GET", hosts: tuple[str, ...] = ("localhost",)) -> HTTPResponse:
    """The answer, with its body read."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        return answer


def events_of(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


# --- who may look


def test_whoever_has_the_token_gets_the_page_and_its_events() -> None:
    source = Said()
    with serving(source) as port:
        shown = ask(port, f"/{TOKEN}/")
        assert (shown.status, shown.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
        stream: Any = ask(port, f"/{TOKEN}/events?run=runs%2Fone")
        assert (stream.status, events_of(stream.text)) == (200, [{"one": 1}, {"two": 2}])
        assert source.asked == ["runs/one"]


@pytest.mark.parametrize("path", ["/", "/events", "/other/", f"/{TOKEN}x/events", f"/{TOKEN[:-1]}/", "/%0/", "//", "x"])
def test_without_the_token_nothing_is_told(path: str) -> None:
    source = Said()
    with serving(source) as port:
        answer: Any = ask(port, path)
        assert (answer.status, source.asked) == (403, [])
        assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "path", [f"/{TOKEN}", f"/{TOKEN}/live.html", f"/{TOKEN}/../", f"/{TOKEN}/events/", f"/{TOKEN}//"]
)
def test_no_folder_is_listed_and_no_other_file_served(path: str) -> None:
    with serving(Said()) as port:
        assert ask(port, path).status == 404


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("evil.example",),
        ("evil.example:80",),
        ("localhost.evil",),
        ("localhost:80.evil",),
        ("localhost", "localhost"),
        ("[::1]",),
    ],
)
def test_a_page_that_leads_here_by_its_own_dns_is_refused(hosts: tuple[str, ...]) -> None:
    source = Said()
    with serving(source) as port:
        assert (ask(port, f"/{TOKEN}/events", hosts=hosts).status, source.asked) == (421, [])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "LOCALHOST:8080"])
def test_a_tunnel_may_begin_at_any_port(host: str) -> None:
    with serving(Said()) as port:
        assert ask(port, f"/{TOKEN}/", hosts=(host,)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "BREW"])
def test_nothing_but_get_is_answered(method: str) -> None:
    with serving(Said()) as port:
        answer = ask(port, f"/{TOKEN}/", method)
        assert (answer.status, answer.getheader("Allow")) == (405, "GET")


def test_what_is_no_request_is_refused_and_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(Said()) as port:
        for request in (b"<script>\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 70_000, b"\0\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port)) as end, suppress(ConnectionError):
                end.sendall(request)
                end.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda end=end: end.recv(4096), b""))  # type: ignore[misc]
                assert b"script" not in answer
    assert capfd.readouterr() == ("", "")


def test_the_page_loads_nothing_from_elsewhere_and_its_policy_allows_what_stands_in_it_alone() -> None:
    text, policy = page()
    assert not re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"|@import|url\(", text)
    assert {*re.findall(r"https?://[^\"'\s]+", text)} == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\s(style|on\w+)=\"|innerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    assert "unsafe" not in policy
    with serving(Said()) as port:
        answer = ask(port, f"/{TOKEN}/")
        policy = answer.getheader("Content-Security-Policy") or ""
        assert "frame-ancestors 'none'" in policy
        assert (answer.getheader("Referrer-Policy"), answer.getheader("Cache-Control")) == ("no-referrer", "no-store")


def test_only_this_machine_is_listened_to() -> None:
    with listen(0, "--ui") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_connections_beyond_those_that_have_a_place_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "MOST_VIEWERS", 1)
    with serving(Said()) as port, socket.create_connection(("127.0.0.1", port)) as first:
        first.sendall(b"GET ")  # it takes the only place
        with socket.create_connection(("127.0.0.1", port)) as second, suppress(ConnectionError):
            assert second.recv(1) == b""
        first.sendall(f"/{TOKEN}/ HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert first.recv(12) == b"HTTP/1.0 200"


# --- what is told

ABOUT = About("ssp", "train.py", "runs/one", {"above-bound": "its lead is {0}: it waits for {1:workers}"}, True)


def view(**given: Any) -> View:
    return View(**{"seconds": 1.0, "steps": 0, "speed": 0.0, "done": None, "rows": (), **given})


def test_whatever_a_run_has_is_json(tmp_path: Path) -> None:
    curves, tally = LoggedCurves(), Tally(RunModel(waits=WaitSums()))
    curves.add("loss", 1.0, math.nan)
    curves.add("loss", 2.0, 0.5)
    tally.recorded(3, 2.0, None)
    tally.evaluated(3, {"accuracy": math.nan, "error": 0.1})
    row = Row(0, 1, math.inf, State("waiting", why="x" * 1000), None, None, ("loss", math.nan))
    shown = told(ABOUT, view(rows=(row,), scores=(Score("accuracy", math.nan),)), tally, curves, ["a line\n<b>"])
    plain = json.loads(msgspec.json.encode(shown))
    assert plain["curves"] == [
        {"name": "error", "of": "evaluate", "points": [[2.0, 0.1]]},
        {"name": "loss", "of": "log", "points": [[2.0, 0.5]]},
    ]
    assert (plain["workers"][0]["speed"], plain["scores"][0]["value"], plain["remarks"]) == (
        None,
        None,
        ["a line\n<b>"],
    )
    assert len(plain["workers"][0]["why"]) < 500


def test_of_many_workers_those_are_told_of_that_others_wait_for() -> None:
    rows = tuple(Row(one, 0, 0.0, State("idle"), 0, 0, None, awaited_by=int(one == 900)) for one in range(1000))
    shown = told(ABOUT, view(rows=rows), Tally(), LoggedCurves())
    workers = [one["worker"] for one in shown["workers"]]
    assert workers == [*range(MOST_ROWS - 1), 900]
    assert shown["more"] == 1000 - MOST_ROWS


def test_curves_take_no_more_memory_however_much_is_logged() -> None:
    curves = LoggedCurves()
    for step in range(5000):
        curves.add("loss", float(step), float(step))
        curves.add(f"name {step}", 0.0, 0.0)
    shown = curves.told()
    assert len(shown) == MOST_CURVES
    assert len(shown[0]["points"]) <= Curve.MOST
    assert all(moment == value for moment, value in shown[0]["points"])


def test_waits_are_added_up_by_their_cause_and_by_who_ended_them_with_the_rest_beside() -> None:
    tally = tally_of(FIXTURES / "ssp" / "ledger.sqlite")
    sums = tally.model.waits = WaitSums()
    ended_waits = [wait for moment in read_facts(FIXTURES / "ssp" / "ledger.sqlite") for wait in sums.record(*moment)]
    causes = told(ABOUT, view(), tally, LoggedCurves())["causes"]
    ordered = [one for one in causes if one["times"]]
    assert sum(one["times"] for one in ordered) == len(ended_waits) > 0
    assert sum(one["seconds"] for one in ordered) == pytest.approx(sum(wait.seconds for wait in ended_waits))
    by = {worker for one in ordered for worker, _ in one["by"]}
    assert by == {wait.awaited for wait in ended_waits} - {None}
    waited = sum(share.times.wait for share in tally.shares.values())
    assert sum(one["seconds"] for one in causes) == pytest.approx(max(waited, sum(w.seconds for w in ended_waits)), 0.1)


# --- while the run goes


class Page:
    """A stage whose display feeds a page, with the page's end of the feed."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder, workers=2)
        ours, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.feed = PageFeed(ours)
        self.stage.run_state.display.feed(self.feed)

    def looks(self, said: bytes) -> None:
        self.end.send(said)
        self.stage.loop.watched[self.feed]()

    def lines(self) -> list[bytes]:
        """What was told since the last call."""
        data = b""
        with suppress(BlockingIOError):
            while more := self.end.recv(1 << 16):
                data += more
        return data.splitlines()

    def close(self) -> None:
        self.end.close()
        self.feed.let_go()


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path)
    yield made
    made.close()


def test_nothing_is_made_for_a_page_that_nobody_looks_at(fed: Page) -> None:
    fed.stage.loop.pass_time()
    assert (fed.lines(), fed.stage.loop.timers) == ([], [])


def test_whoever_looks_is_told_at_once_and_twice_a_second_until_the_last_has_gone(fed: Page) -> None:
    fed.looks(b"1")
    (first,) = fed.lines()
    assert (first[:1], json.loads(first[1:])["steps"]) == (b"v", 0)
    fed.stage.loop.pass_time(2.0)
    assert len(fed.lines()) == 4
    fed.looks(b"0")
    fed.looks(b"1")  # before the next view is due: there are not two of them then
    fed.stage.loop.pass_time(2.0)
    assert len(fed.lines()) == 4
    fed.looks(b"0")
    fed.stage.loop.pass_time()
    assert (fed.lines(), fed.stage.loop.timers) == ([], [])


def test_a_page_that_takes_nothing_holds_nothing_up_and_gets_the_newest_view_later() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with closing(theirs):
        feed = PageFeed(ours)
        for number in range(1000):
            feed.tell({"number": number, "long": "x" * 10_000})
        assert len(feed._rest) + len(feed._next) < 25_000
        taken: list[bytes] = []
        reader = threading.Thread(target=lambda: taken.extend(theirs.makefile("rb")))
        reader.start()
        feed.ended({"end": {"outcome": "completed"}})
        reader.join()
    numbers = [json.loads(line[1:]).get("number") for line in taken]
    assert (numbers[-2:], taken[-1][:1]) == ([999, None], b"e")
    assert numbers[:-1] == sorted(numbers[:-1])


def test_a_run_whose_page_has_gone_goes_on(fed: Page) -> None:
    fed.looks(b"1")
    fed.end.close()
    fed.stage.loop.watched[fed.feed]()
    fed.stage.loop.pass_time()
    assert not fed.stage.loop.watches(fed.feed)
    assert fed.stage.output.lines == [
        "the process that serves the live page has gone; the run goes on without the page"
    ]


def test_what_scripts_log_is_on_the_page_even_if_nobody_looked_then(fed: Page) -> None:
    for step in range(3):
        fed.stage.run_state.display.logs(0, step, {"loss": 1.0 + step})
    fed.looks(b"1")
    (line,) = fed.lines()
    (curve,) = json.loads(line[1:])["curves"]
    assert (curve["name"], [value for _, value in curve["points"]]) == ("loss", [1.0, 2.0, 3.0])


def test_a_reader_gets_the_newest_view_and_the_end_and_the_run_hears_of_the_first_and_the_last() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        source = RunSource(theirs)
        feed = PageFeed(ours)
        feed.tell({"number": 1})
        feed.tell({"number": 2})
        first, second = source.events(None), source.events(None)
        reader = threading.Thread(target=source.read)
        reader.start()
        taken = [next(first)]
        feed.hear()
        assert feed.is_looked_at
        feed.ended({"end": 1})
        reader.join()
        source.drain()
        newest = [b'{"number":2}', b'{"end":1}']
        assert [event for event in (*taken, *first) if event is not None][-2:] == newest
        assert [event for event in second if event is not None] == newest


# --- recorded runs


def copied(name: str, to: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, to))


def test_a_recorded_run_is_shown_as_its_summary_has_it(tmp_path: Path) -> None:
    run = copied("ssp", tmp_path / "one")
    summary = json.loads((run / "summary.json").read_text())
    shown = LedgerFollower(run).look()
    assert shown["title"] == "ssp:bound=1"
    assert (shown["steps"], shown["samples"], shown["version"]) == tuple(
        summary[key] for key in ("steps", "samples", "versions")
    )
    assert shown["staleness"]["mean"] == pytest.approx(summary["staleness"]["mean"])
    assert shown["training"] == pytest.approx(summary["wall_seconds"])
    for row, told_of in zip(summary["per_worker"], shown["workers"], strict=True):
        assert (told_of["worker"], told_of["steps"]) == (row["worker"], row["steps"])
        assert told_of["compute"] == pytest.approx(row["compute_seconds"])
        assert told_of["doing"] == (row["left"] or {"reason": "idle"})["reason"]
    assert shown["end"] == {"outcome": "completed", "error": None, "kept": True}
    (curve,) = [one for one in shown["curves"] if one["of"] == "evaluate"]
    assert [value for _, value in curve["points"]] == pytest.approx([row["error"] for row in summary["evaluations"]])


def test_a_run_that_was_simulated_is_shown_though_it_has_no_script(tmp_path: Path) -> None:
    run = copied("ssp", tmp_path / "one")
    config = run / "config.toml"
    config.write_text("".join(line for line in config.open() if not line.startswith("script = ")))
    assert LedgerFollower(run).look()["title"] == "ssp:bound=1"


def cut(run: Path, share: float) -> None:
    """Leave that share of each table of the run's ledger, as if it had come no further."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger, ledger:
        (facts,) = ledger.execute("SELECT max(id) FROM facts").fetchone()
        ledger.execute("DELETE FROM orders WHERE fact > ?", (int(facts * share),))
        ledger.execute("DELETE FROM facts WHERE id > ?", (int(facts * share),))
        for table in ("step_times", "versions", "evaluations", "scalars"):
            (rows,) = ledger.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()
            ledger.execute(f"DELETE FROM {table} WHERE rowid > ?", (int(rows * share),))


@pytest.mark.parametrize("name", ["ssp", "ripples", "ps-plus"])
def test_a_run_that_is_read_bit_by_bit_is_shown_as_one_that_is_read_at_once(name: str, tmp_path: Path) -> None:
    run = copied(name, tmp_path / "one")
    at_once = LedgerFollower(run).look()
    followed, steps = LedgerFollower(run), []
    for share in (0.0, 0.3, 0.7, 1.0):
        shutil.copy(FIXTURES / name / "ledger.sqlite", run / "ledger.sqlite")
        cut(run, share)
        steps.append(followed.look()["steps"])
    assert steps == sorted(steps)
    assert 0 == steps[0] < steps[1] < steps[3]
    assert followed.look() == at_once


def test_a_run_that_was_cut_as_it_was_resumed_is_read_anew(tmp_path: Path) -> None:
    run = copied("ssp", tmp_path / "one")
    followed = LedgerFollower(run)
    whole = followed.look()
    cut(run, 0.5)
    shown = followed.look()
    assert shown == LedgerFollower(run).look()
    assert shown["steps"] < whole["steps"]


def test_a_run_that_has_noted_no_end_has_crashed_unless_a_process_writes_it(tmp_path: Path) -> None:
    run = copied("ssp", tmp_path / "one")
    (run / "summary.json").unlink()
    assert LedgerFollower(run).look()["end"]["outcome"] == "completed", "the summary is written after the ledger"
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("DELETE FROM run WHERE key = 'end'")
    assert LedgerFollower(run).look()["end"]["outcome"] == "crashed"
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        assert LedgerFollower(run).look()["end"] is None
    finally:
        os.close(folder)


def test_the_list_has_every_run_and_only_its_runs_can_be_opened(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    hostile = copied("ssp", runs / HOSTILE)
    copied("ripples", tmp_path / "other")
    source = FolderSource([runs])
    with closing(source.events(None)) as listed:
        (row,) = json.loads(next(listed) or b"")["runs"]
    assert (row["name"], row["protocol"], row["status"]) == (str(hostile), "ssp:bound=1", "completed")
    assert json.loads(next(source.events(str(hostile))) or b"")["folder"] == str(hostile)
    for name in (f"{runs}/../other", str(tmp_path / "other"), "/etc", "", str(hostile) + "/"):
        assert json.loads(next(source.events(name)) or b"") == {"error": "there is no such run in these folders"}


def test_a_folder_whose_name_is_no_utf_8_is_listed_and_can_be_opened(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    copied("ssp", runs / os.fsdecode(b"\xff\xfe"))
    source = FolderSource([runs])
    with closing(source.events(None)) as listed:
        (row,) = json.loads(next(listed) or b"")["runs"]
    shown = json.loads(next(source.events(row["name"])) or b"")
    assert (row["name"], shown["folder"], shown["steps"]) == (f"{runs}/\\udcff\\udcfe", row["name"], 16)


def test_a_run_that_cant_be_read_is_one_line(tmp_path: Path) -> None:
    run = copied("ssp", tmp_path / "one")
    (run / "ledger.sqlite").write_bytes(b"no ledger")
    (event,) = FolderSource([run]).events(None)
    assert "ledger.sqlite: no ledger can be read there" in json.loads(event or b"")["error"]


# --- the command line


@pytest.mark.parametrize(
    ("given", "port", "script", "own"),
    [
        (["train.py", "--ui", "x"], None, "train.py", ["--ui", "x"]),
        (["--ui", "train.py", "--ui", "y", "--epochs", "three"], 0, "train.py", ["--ui", "y", "--epochs", "three"]),
        (["--ui", "8080", "train.py"], 8080, "train.py", []),
        (["--ui=8080", "train.py"], 8080, "train.py", []),
        (["--ui", "-n", "3", "train.py"], 0, "train.py", []),
        (["-n", "3", "--ui", "8080", "--ui", "8081", "train.py", "1"], 8081, "train.py", ["1"]),
    ],
)
def test_the_word_after_the_flag_is_its_port_if_it_is_a_number(
    given: list[str], port: int | None, script: str, own: list[str]
) -> None:
    options = parser("run").parse_args(["run", *given])
    assert (options.ui, str(options.script), options.arguments) == (port, script, own)


@pytest.mark.parametrize("port", ["", "abc", "-1", "70000"])
def test_what_is_no_port_and_stands_in_the_flag_s_own_word_is_refused_in_one_line(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"--ui={port}", str(tmp_path / "train.py"), "--ui", port]) == 2
    assert capsys.readouterr().err.startswith(f'paceline: --ui is "{port}"; it must be a whole number, ')


def test_programs_ask_for_the_page_with_true_or_a_port() -> None:
    for given, port in ((True, 0), (False, None), (None, None), (8080, 8080), (0, 0)):
        assert parsed("run", words("run", {"ui": given})).ui == port


def test_a_port_that_is_taken_is_one_line_and_no_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("")
    with listen(0, "--ui") as taken:
        port = str(taken.getsockname()[1])
        assert main(["run", "--ui", port, "--out", str(tmp_path / "run"), str(tmp_path / "train.py")]) == 2
        line = f"paceline: --ui {port}: Address already in use; name another port, or none for a free one\n"
        assert capsys.readouterr().err == line
        assert main(["ui", str(tmp_path), "--port", port]) == 2
        assert capsys.readouterr().err == line.replace("--ui", "--port")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith(
        "none: there is no such folder; name a run's folder, or a folder with runs in it\n"
    )


def test_ddp_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("")
    assert main(["run", "-p", "ddp", "--ui", str(tmp_path / "train.py")]) == 2
    assert "--ui is given, and -p ddp, which can't follow it" in capsys.readouterr().err


# --- real runs

WAITS = training(
    "paceline.log(loss=1.0)\nif step == 3: tell('trains', me)\n"
    "while step >= 3 and not os.path.exists('GO'): time.sleep(0.01)"
)
"""A script that goes on from its third step once there is a file."""


def waiting(tmp_path: Path) -> tuple[str, Path]:
    go = tmp_path / "go"
    return WAITS.replace("GO", str(go)), go


def address_of(run: Launcher) -> tuple[str, int, str]:
    """The page's address, its port and its path."""
    found = re.search(r"live page: (http://127\.0\.0\.1:(\d+)(/[\w-]+/))\n", said(run, "live page: .*\n"))
    assert found is not None
    return found[1], int(found[2]), found[3]


def test_a_run_shows_itself_while_it_goes_and_tells_how_it_ended(launch: Launch, tmp_path: Path) -> None:
    script, go = waiting(tmp_path)
    run = launch.start(script, "-n", "2", "--ui")
    _, port, path = address_of(run)
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", f"{path}events")
        stream = connection.getresponse()
        for worker in range(2):
            launch.events.wait_for("trains", worker)
        while True:
            line = stream.readline()
            assert line, "the stream has ended before the run"
            if line.startswith(b"data: "):
                shown = json.loads(line[6:])
                if shown["steps"] == 6 and {row["doing"] for row in shown["workers"]} == {"computing"}:
                    break
        assert (shown["title"], shown["epoch"], shown["samples"]) == ("bsp", [1, 2], 24)
        assert [curve["name"] for curve in shown["curves"]] == ["loss"]
        go.touch()
        last = events_of(stream.read().decode())
    assert last[-1] == {"end": {"outcome": "completed", "error": None, "kept": True}}
    done = ended(run).completed()
    assert (last[-2]["steps"], last[-2]["done"]) == (done.summary["steps"], 1.0)


def test_a_reader_that_takes_nothing_holds_up_neither_the_run_nor_its_end(launch: Launch, tmp_path: Path) -> None:
    script, go = waiting(tmp_path)
    run = launch.start(script, "-n", "2", "--ui")
    _, port, path = address_of(run)
    with socket.create_connection(("127.0.0.1", port)) as idle, socket.create_connection(("127.0.0.1", port)) as deaf:
        idle.send(b"GET ")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.send(f"GET {path}events HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        for worker in range(2):
            launch.events.wait_for("trains", worker)
        go.touch()
        ended(run).completed()


def test_an_interrupted_run_says_so_on_its_page(launch: Launch) -> None:
    run = launch.start(training("if step == 3: tell('trains', me)\ntime.sleep(0.01)", epochs=1000), "-n", "2", "--ui")
    _, port, path = address_of(run)
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", f"{path}events")
        stream = connection.getresponse()
        for worker in range(2):
            launch.events.wait_for("trains", worker)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        last = events_of(stream.read().decode())[-1]
    assert last == {"end": {"outcome": "interrupted", "error": last["end"]["error"], "kept": True}}
    assert ended(run).code == 130


def test_a_run_that_is_refused_says_why_on_its_page(launch: Launch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    begins = (
        f"tell('here')\nwhile not os.path.exists('{go}'): time.sleep(0.01)\nevaluate = lambda model: dict(error=1.0)"
    )
    run = launch.start(training(before=begins), "--ui", "--target", "accuracy>=0.9")
    _, port, path = address_of(run)
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", f"{path}events")
        stream = connection.getresponse()
        launch.events.wait_for("here")
        go.touch()
        last = events_of(stream.read().decode())[-1]["end"]
    assert (last["outcome"], last["kept"]) == ("failed", False)
    ended(run).refused(last["error"])


def test_a_run_that_goes_on_is_followed_by_its_ledger(launch: Launch, tmp_path: Path) -> None:
    script, go = waiting(tmp_path)
    run = launch.start(script, "-n", "2")
    for worker in range(2):
        launch.events.wait_for("trains", worker)
    folder: Path = run.folder  # type: ignore[union-attr]
    events = FolderSource([folder]).events(None)
    while (shown := json.loads(next(events) or b"{}")).get("steps") != 6:
        pass
    assert (shown["end"], {row["doing"] for row in shown["workers"]}) == (None, {"computing"})
    go.touch()
    *_, last = (json.loads(event) for event in events if event)
    done = ended(run).completed()
    assert (last["end"]["outcome"], last["steps"]) == ("completed", done.summary["steps"])


@pytest.mark.skipif(PROGRAM is None, reason="no browser is installed")
def test_a_browser_draws_the_run_and_its_end(launch: Launch, tmp_path: Path) -> None:
    script, go = waiting(tmp_path)
    run = launch.start(script, "-n", "2", "--ui")
    url, _, _ = address_of(run)
    with Browser(tmp_path / "profile") as browser:
        browser.open(url)
        for worker in range(2):
            launch.events.wait_for("trains", worker)
        browser.wait_for("document.querySelectorAll('#workers tbody tr').length === 2")
        browser.wait_for("document.querySelector('#curves svg path') !== null")
        assert browser.ask("document.getElementById('pill').textContent") == "live"
        go.touch()
        browser.wait_for("document.getElementById('pill').textContent === 'completed'")
        ended(run).completed()
        text = browser.ask("document.body.innerText")
        assert "The run has completed after" in text
        assert f"paceline explain {run.folder}" in text  # type: ignore[union-attr]
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                browser.window(width, scheme)
                assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints == []


@pytest.mark.real_run
@pytest.mark.skipif(PROGRAM is None, reason="no browser is installed")
def test_a_browser_takes_no_name_for_code(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    copied("ssp", runs / HOSTILE)
    copied("ripples", runs / "other")
    with Browser(tmp_path / "profile") as browser, serving(FolderSource([runs])) as port:
        browser.open(f"http://127.0.0.1:{port}/{TOKEN}/")
        browser.wait_for("document.querySelectorAll('main a').length === 2")
        assert HOSTILE in browser.ask("document.querySelector('main').innerText")
        browser.ask("[...document.querySelectorAll('main a')].find((a) => a.innerText.includes('<img')).click()")
        browser.wait_for("document.getElementById('pill').textContent === 'completed'")
        assert HOSTILE in browser.ask("document.getElementById('what').textContent")
        assert browser.ask("document.images.length") == 0
        assert browser.complaints == []


class Breaking:
    """A source whose connections break until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.over = threading.Event()

    def events(self, run: str | None) -> Events:
        row = {"name": f"mended: {self.mended}".lower(), "began": None, "status": "running"}
        yield msgspec.json.encode({"runs": [row], "more": False})
        if self.mended:
            self.over.wait()


@pytest.mark.real_run
@pytest.mark.skipif(PROGRAM is None, reason="no browser is installed")
def test_a_browser_says_that_the_connection_is_lost_keeps_what_was_there_and_tries_again(tmp_path: Path) -> None:
    source = Breaking()
    with Browser(tmp_path / "profile") as browser, serving(source) as port:
        browser.open(f"http://127.0.0.1:{port}/{TOKEN}/")
        browser.wait_for("document.getElementById('pill').textContent === 'connection lost'")
        assert browser.ask("document.querySelector('main a').innerText") == "mended: false"
        source.mended = True
        browser.wait_for("document.querySelector('main a').innerText === 'mended: true'")
        assert browser.ask("document.getElementById('pill').textContent") == "live"
        assert browser.ask("document.getElementById('banner').innerText") == ""
        source.over.set()
