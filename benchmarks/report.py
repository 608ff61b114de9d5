"""Opens a report in headless Chromium and tries it out, in light and in dark.

    python benchmarks/report.py                        # of five simulated runs, one of them long
    python benchmarks/report.py runs/* --out pictures  # of these; the page and its pictures stay there

Demanded are: no error and no request while the page is opened and used, a timeline for each run that zooms and moves
by wheel, drag, keys and buttons, sentences where the pointer is, and the numbers of each summary.json on the page. It
ends with exit code 1 if anything of this is missing. Chromium is looked for on the PATH; nothing else is needed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

from paceline.cli.main import main as paceline
from paceline.core.phrases import count
from paceline.runs.report import shown_of

SCENARIO = """
[cluster]
workers = 4
nodes = 2
compute = "100ms"
jitter = 0.1

[network]
bandwidth = "40Mbit/s"
message = "100KB"

[[worker]]
index = 3
speed = 0.5
"""
SIMULATED = (("ssp:bound=2", 200), ("sync-switch:switch_at=0.3", 200), ("ad-psgd", 200), ("bsp", 200), ("asp", 60_000))
"""Protocols, and the steps that are simulated under each."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1")
TOP = 1250
"""Pixels of the page's top, for a picture."""
SCHEMES = {"light": "1", "dark": "0"}
"""By name: Blink's number."""

LISTEN = """<script>
const wrong = [];
addEventListener("error", (event) => wrong.push(event.message));
for (const kind of ["error", "warn"]) console[kind] = (...words) => wrong.push(words.join(" "));
HTMLElement.prototype.setPointerCapture = () => {};  // there is no pointer: its events are made here
</script>"""
OPEN = "<script>for (const one of document.querySelectorAll('details')) one.open = true;</script>"
"""Unfolds everything."""
TRY = """<script>
const after = (element, x, y) => {
  const box = element.getBoundingClientRect();
  return { clientX: box.left + x, clientY: box.top + y, pointerId: 1, cancelable: true, ctrlKey: true };
};
function timeline(canvas) {
  const figure = canvas.closest("figure"), range = () => figure.querySelector(".tools span").textContent;
  const press = (title) => figure.querySelector(`button[title="${title}"]`).click();
  const point = (kind, x, y) => canvas.dispatchEvent(new PointerEvent(kind, after(canvas, x, y)));
  const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, cancelable: true }));
  const ranges = { all: range() }, note = (name) => { ranges[name] = range(); };
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1500, ...after(canvas, 500, 40) }));
  note("wheel");
  point("pointerdown", 600, 40);
  point("pointermove", 400, 40);
  point("pointerup", 400, 40);
  note("drag");
  for (const name of ["ArrowLeft", "+", "0"]) { key(name); note(name); }
  for (const title of ["Zoom in", "Later", "Show the whole run"]) { press(title); note(title); }
  const told = new Set(), box = canvas.getBoundingClientRect();
  for (let y = 20; y < box.height; y += 5) for (let x = 80; x < box.width; x += 5) {
    point("pointermove", x, y);
    told.add(document.getElementById("tip").textContent);
  }
  point("pointerleave", 0, 0);
  return { name: canvas.getAttribute("aria-label"), ranges, told: [...told] };
}
addEventListener("load", () => setTimeout(() => {
  const timelines = [...document.querySelectorAll(".time canvas")].map(timeline);
  const plots = document.querySelectorAll("svg[role=img], .u-over");
  for (const plot of plots) plot.dispatchEvent(new PointerEvent("pointermove", after(plot, 200, 100)));
  for (const one of document.querySelectorAll("button[aria-pressed]")) { one.click(); one.click(); }
  const names = performance.getEntriesByType("resource").map((entry) => entry.name);
  const requests = names.filter((name) => !name.startsWith("data:"));
  const result = document.createElement("pre");
  result.id = "result";
  const text = document.body.innerText, wide = document.documentElement.scrollWidth > innerWidth;
  result.textContent = JSON.stringify({ wrong, requests, timelines, text, wide });
  document.body.append(result);
}, 200));
</script>"""


NUMBERS = {"steps", "samples", "wall_seconds", "steps_per_second", "samples_per_second", "final_parameters_sha256"}
MOVES = (
    ("wheel", "all"),
    ("drag", "wheel"),
    ("ArrowLeft", "drag"),
    ("+", "ArrowLeft"),
    ("Zoom in", "0"),
    ("Later", "Zoom in"),
)
"""What changes the time that is shown, and what was done before it."""
WHOLE = ("0", "Show the whole run")


def tried(browser: str, page: Path, profile: Path) -> dict[str, Any]:
    """What came of opening the page and using it."""
    trial = profile / "trial.html"
    text = page.read_text(encoding="utf-8")
    trial.write_text(
        text.replace("<head>", f"<head>{LISTEN}", 1).replace("</body>", f"{OPEN}{TRY}</body>"), encoding="utf-8"
    )
    command = [browser, *FLAGS, f"--user-data-dir={profile}", "--window-size=1200,900", "--virtual-time-budget=20000"]
    done = subprocess.run([*command, "--dump-dom", trial.as_uri()], capture_output=True, text=True, timeout=180)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"{browser} did not come to the page's end:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(unescape(found.group(1)))
    return result


def pictured(browser: str, page: Path, part: str, height: int, scheme: str, picture: Path, profile: Path) -> None:
    """A screenshot of the page, or of that section of it alone."""
    trial = profile / "picture.html"
    hidden = f"<style>header, footer, section:not(#{part}) {{ display: none }}</style></head>" if part else "</head>"
    text = page.read_text(encoding="utf-8").replace("</head>", hidden, 1)
    trial.write_text(text.replace("</body>", f"{OPEN}</body>") if part else text, encoding="utf-8")
    command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size=1200,{height}", f"--screenshot={picture}"]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    subprocess.run([*command, trial.as_uri()], capture_output=True, check=True, timeout=180)


def missing(result: dict[str, Any], folders: list[Path]) -> list[str]:
    """What was demanded and is not so, each in a line."""
    lines = [f"an error: {wrong}" for wrong in result["wrong"]]
    lines += [f"a request: {name}" for name in result["requests"]]
    if result["wide"]:
        lines.append("the page is wider than its window")
    if len(result["timelines"]) != len(folders):
        lines.append(f"{len(folders)} runs, and {len(result['timelines'])} timelines")
    for timeline in result["timelines"]:
        ranges = timeline["ranges"]
        lines += [
            f"{timeline['name']}: {name} does nothing" for name, before in MOVES if ranges[name] == ranges[before]
        ]
        lines += [f"{timeline['name']}: {name} does not show all" for name in WHOLE if ranges[name] != ranges["all"]]
        for word in ("comput", "worker"):
            if not any(word in told for told in timeline["told"]):
                lines.append(f"{timeline['name']}: the pointer finds no {word}")
    for folder in folders:
        path = folder / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {}
        for name in NUMBERS & summary.keys():
            shown = written(summary[name])
            if shown not in result["text"]:
                lines.append(f"{folder}: {name} is {shown}, which is not on the page")
    return lines


def written(value: Any) -> str:
    """A number as the page writes it; of a checksum, the first digits."""
    if isinstance(value, float) and value != int(value):
        return f"{float(f'{value:.4g}'):,}".removesuffix(".0")
    return f"{value:,}" if isinstance(value, int | float) else (value or "—")[:12]


def simulated(folder: Path) -> list[Path]:
    """The folders of runs that are simulated for this."""
    scenario = folder / "cluster.toml"
    scenario.write_text(SCENARIO)
    folders = []
    for protocol, steps in SIMULATED:
        folders.append(folder / protocol.partition(":")[0])
        flags = ["--steps", str(steps), "--batch", "32", "--out", str(folders[-1]), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "paceline", "simulate", str(scenario), "-p", protocol, *flags],
            stdout=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            sys.exit(done.returncode)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="runs' folders (default: simulated ones)")
    parser.add_argument("--out", type=Path, help="where the page and its pictures go")
    args = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"there is none of {', '.join(BROWSERS)} on the PATH")

    with tempfile.TemporaryDirectory(prefix="paceline-report-") as temporary:
        out = (args.out or Path(temporary) / "out").absolute()
        out.mkdir(parents=True, exist_ok=True)
        folders = args.runs or simulated(Path(temporary))
        page = out / "report.html"
        if code := paceline(["report", *map(str, folders), "--out", str(page)]):
            sys.exit(code)
        profile = Path(temporary) / "profile"
        profile.mkdir()
        size = page.stat().st_size / 1e6
        shown = shown_of(folders)
        lines = missing(tried(browser, page, profile), shown)
        for scheme in SCHEMES if args.out else ():
            pictured(browser, page, "", 5000, scheme, out / f"report-{scheme}.png", profile)
            pictured(browser, page, "", TOP, scheme, out / f"top-{scheme}.png", profile)
            pictured(browser, page, "timeline", 250 + 265 * len(shown), scheme, out / f"timeline-{scheme}.png", profile)
    print("\n".join(lines) or f"{count(len(shown), 'run')}, {size:.1f} MB: all is there")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
