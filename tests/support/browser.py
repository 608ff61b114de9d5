"""A real browser, if one is installed: it opens a page, and answers JavaScript.

It is driven through a pair of pipes (`--remote-debugging-pipe`): messages of its debugging protocol are JSON, each
followed by a zero byte.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from support.events import LONG

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)

WITH_PIPES = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Begins a program that has two pipes as its descriptors 3 and 4."""


class Browser:
    """One tab. Use it as a context."""

    def __init__(self, profile: Path) -> None:
        """`profile`: an empty folder of its own."""
        assert PROGRAM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}")
        command = [PROGRAM, *flags, "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WITH_PIPES, str(theirs_in), str(theirs_out), *command],
            pass_fds=[theirs_in, theirs_out],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = count(1)
        self._data = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the page's console has, such as what its policy has refused, and errors of its script."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def window(self, width: int, scheme: str = "light") -> None:
        """Give the window that width, and the user's colour scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def ask(self, expression: str) -> Any:
        """Return the value of this JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until this JavaScript is true."""
        tried = f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"
        deadline = time.monotonic() + LONG
        while not self.ask(tried):
            said = f"{condition} has not come true; the page says:"
            assert time.monotonic() < deadline, f"{said}\n{self.ask('document.body.innerText')}"
            time.sleep(0.02)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": number, "method": method, "params": parameters, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._data:
                data = os.read(self._from, 1 << 16)
                assert data, "the browser has ended"
                self._data += data
            text, _, self._data = self._data.partition(b"\0")
            heard = json.loads(text)
            if heard.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(heard["params"]))
            if heard.get("id") == number:
                assert "result" in heard, heard
                return dict(heard["result"])
