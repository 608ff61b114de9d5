"""Serves the live page on loopback: of a run while it goes, in a process of its own, or of the runs in folders.

Whoever has the token in the page's address may look, and nobody can change anything. Each view of a run is sent as a
server-sent event. A reader that is slow misses views, and one that takes none for `PATIENCE` seconds is cut off.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from paceline.display.live import ended, plain
from paceline.display.page_feed import END, LOOKS, LOOKS_NOT, PageFeed
from paceline.errors import ConfigError, PacelineError
from paceline.files import traced
from paceline.ipc.processes import end_in_time, fork_child
from paceline.records.folders import Listed, is_run, listed, runs_below
from paceline.records.summary import Summary
from paceline.runs.folders import protocol_of
from paceline.runs.followed import LedgerFollower
from paceline.terminal import say

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Names that a browser may have for this server. Any other one is a stranger's, which leads here by its own DNS."""
MOST_VIEWERS = 32
"""Connections at once. Further ones are closed."""
PATIENCE = 10.0
"""Seconds that a request has to come, and that a reader has to take a view."""
BEAT = 5.0
"""Seconds without a view after which a reader is sent something, to see whether it is still there."""
LAST = 0.7
"""Seconds that readers have to take how the run has ended."""
BUFFER = 1 << 17
"""Bytes that wait in the kernel for a slow reader."""
NOTHING = "default-src 'none'"
"""The Content-Security-Policy of what is no page."""
LIST_EVERY, RUN_EVERY = 2.0, 1.0
"""Seconds between two looks at the folders of runs, and at a run that goes on."""
MOST_RUNS = 500
"""Runs in the list, the newest."""


Events = Generator[bytes | None, None, None]
"""Each is JSON; None: there was none for a while."""


class Source(Protocol):
    """What a server shows."""

    def events(self, run: str | None) -> Events:
        """Yield events until there will be no more. `run` is what the address names."""


# --- the server


class Server(ThreadingHTTPServer):
    """Answers on that socket, whoever has the token."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, token: str, source: Source) -> None:
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.token = token
        self.source = source
        self._places = threading.BoundedSemaphore(MOST_VIEWERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for the connection, if there is a place."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader that has gone."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            say(f"the live page: an error that should not be: {traced(error, 'ui')}; please report it")


class Handler(BaseHTTPRequestHandler):
    """Answers one request: the page, or the events that it draws."""

    server: Server
    timeout = PATIENCE
    server_version, sys_version = "paceline", ""

    def do_GET(self) -> None:
        """Answer, if the request is for this server and has the token."""
        path, _, query = self.path.partition("?")
        _, token, *rest = *path.split("/"), ""
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._answer(HTTPStatus.FORBIDDEN, "the address lacks the token that paceline has printed")
        elif rest == ["", ""]:
            text, policy = page()
            self._answer(HTTPStatus.OK, text, "text/html", policy)
        elif rest == ["events", ""]:
            (run, *_) = parse_qs(query, errors="replace").get("run", [None])
            with closing(self.server.source.events(run)) as events:
                self._stream(events)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such page")

    def parse_request(self) -> bool:
        """Parse it, and refuse what no page of this server sends."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_ours(hosts[0]):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, f"this server answers as {' and '.join(HOSTS)} alone")
            return False
        if self.command != "GET":
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "this server answers GET alone")
            return False
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that can't be parsed. Nothing of the request is repeated."""
        self._answer(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the token is in each line."""

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain", policy: str = NOTHING) -> None:
        data = text.encode()
        self._begin(status, kind, policy)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Events) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write(b": still there\n\n" if event is None else b"data: " + event + b"\n\n")

    def _begin(self, status: HTTPStatus, kind: str, policy: str = NOTHING) -> None:
        self.close_connection = True
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Connection": "close",
        }.items():
            self.send_header(name, value)


def is_ours(host: str) -> bool:
    """Return whether a request with this Host header is for this server, at whichever port a tunnel begins.

    >>> is_ours("localhost:8080"), is_ours("127.0.0.1"), is_ours("evil.example:8080"), is_ours("localhost:80.evil")
    (True, True, False, False)
    """
    name, colon, port = host.strip().lower().partition(":")
    return name in HOSTS and (not colon or (port.isascii() and port.isdigit()))


@cache
def page() -> tuple[str, str]:
    """Return the page, and the policy that lets a browser run what stands in it, and nothing else."""
    text = files("paceline.display").joinpath("live.html").read_text(encoding="utf-8")
    allowed = {
        part: " ".join(f"'sha256-{_digest(found)}'" for found in re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        for part, tag in (("script-src", "script"), ("style-src", "style"))
    }
    parts = "; ".join(f"{part} {hashes}" for part, hashes in allowed.items())
    return text, f"default-src 'none'; connect-src 'self'; img-src data:; {parts}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def listen(port: int, flag: str) -> socket.socket:
    """Return a socket that listens at that port of loopback; 0: at a free one. Raises ConfigError, in one line."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ConfigError(f"{flag} {port}: {why}; name another port, or none for a free one") from None


def address(listener: socket.socket, token: str) -> str:
    """Return the page's address."""
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"


def new_token() -> str:
    """Return a new token, of 192 random bits."""
    return secrets.token_urlsafe(24)


# --- a run that goes on


class RunSource:
    """A run, as its feed tells. It tells the run when the first reader comes, and when the last has gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._changed = threading.Condition()
        self._lines = 0
        """How many have come."""
        self._view: bytes | None = None
        self._ended: bytes | None = None
        self._over = False
        self._viewers = 0

    def read(self) -> None:
        """Take what the feed says, until the run has ended."""
        with suppress(OSError), self._end.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self._lines += 1
                    if line[:1] == END:
                        self._ended = line[1:-1]
                    else:
                        self._view = line[1:-1]
                    self._changed.notify_all()

    def drain(self) -> None:
        """Give readers time to take the last events."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._viewers == 0, LAST)

    def events(self, run: str | None) -> Events:
        """See `Source.events`."""
        seen, sent, over = 0, None, False
        self._count(1)
        try:
            while not over:
                with self._changed:
                    self._changed.wait_for(lambda: self._over or self._lines > seen, BEAT)  # noqa: B023
                    seen, view, end, over = self._lines, self._view, self._ended, self._over
                yield view if view is not sent else None
                if end is not None:
                    yield end
                    break
                sent = view
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            looked, self._viewers = self._viewers > 0, self._viewers + more
            if looked != (self._viewers > 0):
                with suppress(OSError):  # the run has ended
                    self._end.send(LOOKS if self._viewers else LOOKS_NOT)
            self._changed.notify_all()


def served(port: int, say: Callable[[str], None], make: Callable[[PageFeed], Summary]) -> Summary:
    """Make a run, and serve its page meanwhile, in a process of its own. `make` makes it, and gets its feed.

    `say` gets the page's address. Raises ConfigError, in one line, if no page can be served there.
    """
    token = new_token()
    listener = listen(port, "--ui")
    where = address(listener, token)
    ours, theirs = socket.socketpair()

    def body() -> int:
        ours.close()
        source = RunSource(theirs)
        server = Server(listener, token, source)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source.read()
        source.drain()
        return 0

    with listener, theirs:
        process = fork_child(body)
    say(f"live page: {where}")
    feed, end = PageFeed(ours), ended("interrupted", None, kept=False)
    try:
        summary = make(feed)
        end = ended(summary["outcome"], summary["error"] and plain(summary["error"]))
        return summary
    except PacelineError as error:
        end = ended("failed", plain(error), kept=False)
        raise
    except SystemExit:
        end = ended("failed", "the script's own argument parser has ended it", kept=False)
        raise
    finally:
        feed.ended({"end": end})
        end_in_time(process)


# --- runs in folders


class FolderSource:
    """The runs in these folders, whether they have ended or not."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                what = "it is a file" if folder.exists() else "there is no such folder"
                raise ConfigError(f"{folder}: {what}; name a run's folder, or a folder with runs in it")
        self._folders = folders
        self._lock = threading.Lock()
        self._listed: tuple[float, bytes] = (-LIST_EVERY, b"")
        self._followed: dict[str, _Shared] = {}

    def events(self, run: str | None) -> Events:
        """See `Source.events`. Without a name: the list of runs, or the run if there is only one folder, and it is one.

        A name is looked up in that list, and so opens no other file.
        """
        if run is None and len(self._folders) == 1 and is_run(self._folders[0]):
            run = plain(self._folders[0])
        if run is None:
            yield from self._list()
        elif (found := next((folder for folder in self._runs() if plain(folder) == run), None)) is None:
            yield msgspec.json.encode({"error": "there is no such run in these folders"})
        else:
            yield from self._run(found)

    def _runs(self) -> Iterator[Path]:
        for folder in self._folders:
            yield from runs_below(folder)

    def _list(self) -> Events:
        before = b""
        while True:
            with self._lock:
                if time.monotonic() - self._listed[0] >= LIST_EVERY:
                    self._listed = time.monotonic(), self._encoded()
                now = self._listed[1]
            yield now if now != before else None
            before = now
            time.sleep(LIST_EVERY)

    def _encoded(self) -> bytes:
        found = sorted(map(listed, self._runs()), key=lambda run: -(run.began or 0.0))
        return msgspec.json.encode({"runs": [_row(run) for run in found[:MOST_RUNS]], "more": found[MOST_RUNS:] != []})

    def _run(self, folder: Path) -> Events:
        with self._lock:
            shared = self._followed.setdefault(str(folder), _Shared(LedgerFollower(folder)))
            shared.viewers += 1
        try:
            before, over = b"", False
            while not over:
                now, over = shared.look()
                yield now if now != before else None
                before = now
                time.sleep(0.0 if over else RUN_EVERY)
        finally:
            with self._lock:
                shared.viewers -= 1
                if not shared.viewers:
                    del self._followed[str(folder)]


class _Shared:
    """A run that several readers may look at."""

    def __init__(self, run: LedgerFollower) -> None:
        self.viewers = 0
        self._run = run
        self._lock = threading.Lock()
        self._latest: tuple[float, bytes, bool] = (-RUN_EVERY, b"", False)

    def look(self) -> tuple[bytes, bool]:
        """Return the run as it is, as JSON, and whether that is the last there is to say of it."""
        with self._lock:
            if time.monotonic() - self._latest[0] >= RUN_EVERY and not self._latest[2]:
                try:
                    told = self._run.look()
                except ConfigError as error:
                    told = {"error": plain(error)}
                over = "error" in told or told["end"] is not None
                self._latest = time.monotonic(), msgspec.json.encode(told), over
            return self._latest[1:]


def _row(run: Listed) -> dict[str, Any]:
    return {
        "name": plain(run.folder),
        "began": run.began,
        "protocol": plain(protocol_of(run)),
        "workers": run.workers,
        "status": run.status,
        "simulated": run.simulated,
        "steps": run.steps,
        "seconds": run.seconds,
        "metrics": run.metrics,
        "targets": run.targets,
        "error": run.error and plain(run.error),
    }


def serve(folders: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Serve the runs in these folders until the process is interrupted. `say` gets the page's address.

    Raises ConfigError, in one line, if that can't begin.
    """
    source, listener, token = FolderSource(folders), listen(port, "--port"), new_token()
    with Server(listener, token, source) as server:
        say(address(listener, token))
        server.serve_forever()
