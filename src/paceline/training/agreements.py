"""What workers decide together between loops, by `paceline.agree`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.agreements import Call, How, Value, result_of

if TYPE_CHECKING:
    from paceline.training.session import Session


class AgreeCalls:
    """A worker's calls of `agree`, which are counted by epoch: those of all workers with one number meet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = Call(0, 0)
        """Its next call, if it comes in that epoch."""

    def agree(self, how: How, value: Value) -> Value:
        """Return what the values of all workers come to. Other workers' steps don't wait for this one meanwhile."""
        session = self._session
        session.come_by()
        if session.looping:
            session.refuse(
                "the script calls paceline.agree() inside a loop over the prepared loader, where workers are in "
                "different steps; call it between loops, after an epoch, or paceline.stop(reason) to end the run from "
                "inside one"
            )
        if not session.live:
            session.remark_once(
                "agree", "calls paceline.agree() after finish(): it gets its own value, as each worker does"
            )
            return result_of(how, {session.link.worker: value})
        if session.go is not None and session.steps and (changed := session.holder.changed()):
            session.changes.refuse_changed(changed[0])
        agreed = session.link.agree(self._call(), how, value, session.pause)
        session.end_wait()
        if session.go is not None and session.run_used > session.used:
            # The others have trained on meanwhile. Under `all-reduce` replicas stay equal only if all have one rate.
            session.schedules.come_to(session.run_used)
        return agreed.result

    def _call(self) -> Call:
        """Return this call. After a mere look at the data its epoch begins anew."""
        session, loop = self._session, self._session.loop
        left = loop.over and not loop.ended and bool(loop.handed_out)
        epoch = session.epoch - (left and session.batches.ends_with(loop.handed_out))
        call = self._next if self._next.epoch == epoch else Call(epoch, 0)
        self._next = Call(call.epoch, call.nth + 1)
        return call
