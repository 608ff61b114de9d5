"""A host's region of memory, by what lies where in it."""

from __future__ import annotations

from paceline.host.memory_plan import MemoryPlan
from paceline.ipc.memory import Region, Span
from paceline.ipc.messages.worker import Offered


class HostMemory:
    """The bytes of each place, and of what never moves. All scripts of a run bring a model of the same layout."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan = plan
        self._offer: Offered | None = None
        self._region: Region | None = None

    @property
    def offer(self) -> Offered:
        """What scripts have brought to `prepare`."""
        assert self._offer is not None
        return self._offer

    @property
    def region(self) -> Region:
        """Where all of it lies, once that is laid out."""
        assert self._region is not None
        return self._region

    @property
    def laid_out(self) -> bool:
        """Whether there is a region."""
        return self._region is not None

    def offered(self, offer: Offered) -> None:
        """A script has brought that to `prepare`."""
        self._offer = self._offer or offer

    def lay_out(self) -> None:
        """Lay out the region, if there is none."""
        self._region = self._region or Region.create(self._plan.region_bytes(self.offer))

    def place(self, place: int) -> Span:
        """Return the bytes of that place."""
        return self.region.span(*self._plan.bytes_of(place, self.offer))

    def buffers(self, worker: int) -> Span:
        """Return the bytes where the worker finds its buffers as it goes on."""
        return self.region.span(*self._plan.buffers(worker, self.offer))

    @property
    def fixed(self) -> Span:
        """The bytes of what never moves."""
        return self.region.span(*self._plan.fixed(self.offer))

    @property
    def adopted(self) -> Span:
        """The bytes of what takes its place, if a script changes that before its first step."""
        return self.region.span(*self._plan.adopted(self.offer))

    def discard(self, place: int) -> None:
        """Nothing lies in that place: it takes no memory any more."""
        self.region.discard(*self._plan.bytes_of(place, self.offer))

    def free(self) -> None:
        """Give all of the region back."""
        if self._region is not None:
            self._region.free()
