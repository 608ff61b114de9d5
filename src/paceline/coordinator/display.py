"""Everything that shows how a run goes, while it goes: progress, long waits, trackers, and the live page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.coordinator.clock import RunClock
from paceline.coordinator.evaluation import Evaluation
from paceline.coordinator.member import WAITS, Members
from paceline.display.live import About, LoggedCurves, told
from paceline.display.page_feed import PageFeed
from paceline.display.progress import Shower, shower
from paceline.display.state import Watch
from paceline.display.trackers.feed import EVERY, Trackers
from paceline.display.trackers.figures import Figures, parameters
from paceline.display.waits import WaitReports
from paceline.host.cluster import Cluster
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings
from paceline.records.summary import Tally
from paceline.records.waits import WaitSums

PAGE_EVERY = 0.5  # seconds between two views of the live page, while somebody looks at it


class Display:
    """Looks at the run from time to time, and shows what it sees. Make it after the zygote is forked."""

    def __init__(
        self,
        settings: Settings,
        members: Members,
        cluster: Cluster,
        tally: Tally,
        evaluation: Evaluation,
        output: WorkerOutput,
        loop: Loop,
        clock: RunClock,
        trackers: Trackers | None,
    ) -> None:
        self._settings = settings
        self._members = members
        self._tally = tally
        self._output = output
        self._loop = loop
        self._clock = clock
        hosts = members.hosts if settings.hosts > 1 else {}
        reasons = settings.choice.reasons | WAITS
        self._watch = Watch(settings, members, cluster, tally, evaluation, hosts, reasons)
        self._waits = WaitReports(settings.report_waits, hosts, reasons)
        self._trackers = Trackers() if trackers is None else trackers
        self._figures = Figures(tally, settings.choice.has_store)
        self._shower: Shower | None = None
        self._about = About.of(settings.choice, settings.script, settings.folder, reasons)
        self._feed: PageFeed | None = None
        self._curves = LoggedCurves()
        self._tells = False
        """Whether the live page is told at the next view."""
        self._epochs: int | None = None
        self._passes = 1

    def report_waits(self, busy_with: Callable[[], str | None]) -> None:
        """From now on report long waits. `busy_with()` is what the run itself is doing, if anything."""

        def report() -> None:
            for line in self._waits.lines(self._members.values(), busy_with(), self._loop.now()):
                self._output.say(line)
            self._loop.after(self._settings.report_waits, report)

        self._loop.after(self._settings.report_waits, report)

    def show(self) -> None:
        """From now on show how the run goes."""
        self._shower = shower(self._settings, self._output)
        self._show_progress()

    def show_share(self, share: Callable[[], float]) -> None:
        """Do the same where time is virtual. `share` says how much is done, 0 to 1, apart from the script's data."""
        began = self._loop.now()
        self._watch.share, self._watch.passed = share, lambda: self._loop.now() - began
        self.show()

    def feed(self, feed: PageFeed) -> None:
        """From now on tell the live page how the run goes, while somebody looks at it."""
        self._feed = feed
        self._tally.model.waits = WaitSums(sum(share.times.wait for share in self._tally.shares.values()))
        self._loop.watch(feed, self._hear_page)
        self._hear_page()

    def begin(self, work: int | None, offer: messages.worker.Offered) -> None:
        """Training begins. `work`: samples in the whole run, or steps where none are counted; None if unknown.

        `offer`: what the scripts have given `prepare`.
        """
        self._watch.work, self._epochs, self._passes = work, offer.epochs, offer.passes
        self._watch.begin(self._clock.at())
        if self._trackers:
            self._trackers.begin(parameters(self._settings, offer))
            self._figures.look(self._clock.at())
            self._loop.after(EVERY, self._track)

    def epoch_opened(self, samples: int) -> None:
        """An epoch of so many samples begins."""
        self._watch.epoch_opened(samples, self._epochs, self._passes)

    def logs(self, worker: int, step: int, scalars: Mapping[str, float]) -> None:
        """The worker's script has logged these values in that step."""
        self._trackers.logged(worker, step, scalars)
        if self._feed is not None:
            at = self._clock.at()
            for name, value in scalars.items():
                self._curves.add(name, at, value)

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        """The script's `evaluate` said this of a recorded version."""
        made, _ = self._tally.recorded_versions[version]
        self._trackers.evaluated(version, self._clock.at() - made, metrics)

    def close(self) -> None:
        """Show no more."""
        if self._shower is not None:
            self._shower.close()
        if self._feed is not None:
            self._tell_page()  # as it was at last, which is what the page keeps

    def _track(self) -> None:
        figures = self._figures.look(self._clock.at())
        if self._members.any_trains:
            self._trackers.went(self._tally.steps, figures)
        self._loop.after(EVERY, self._track)

    def _show_progress(self) -> None:
        if self._shower is not None:
            self._shower.show(self._watch.look(self._clock.at()))
            self._loop.after(self._shower.every, self._show_progress)

    def _hear_page(self) -> None:
        assert self._feed is not None
        self._feed.hear()
        if self._feed.closed:
            self._loop.unwatch(self._feed)
            self._output.say("the process that serves the live page has gone; the run goes on without the page")
        elif self._feed.is_looked_at and not self._tells:
            self._show_page()

    def _show_page(self) -> None:
        assert self._feed is not None
        self._tells = self._feed.is_looked_at and not self._feed.closed
        if self._tells:
            self._tell_page()
            self._loop.after(PAGE_EVERY, self._show_page)

    def _tell_page(self) -> None:
        assert self._feed is not None
        view = self._watch.look(self._clock.at())
        self._feed.tell(told(self._about, view, self._tally, self._curves, self._output.said))
