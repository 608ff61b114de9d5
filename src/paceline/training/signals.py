"""When the signal handlers of a worker's script run: not while a message is sent or memory changes hands.

A handler may raise, which would leave a message half sent, or a step half taken. torch's threads take signals, too, so
the kernel can't be told to hold them back. Instead, what the script hands to `signal.signal` is wrapped: a handler that
is due in such a moment is called after it, or when the worker begins to wait.
"""

from __future__ import annotations

import faulthandler
import functools
import signal
from collections.abc import Callable
from threading import get_ident
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

TOLD = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
"""Those that the launcher passes on to scripts that have a handler."""


class _Handlers:
    """The script's handlers, as long as this process runs a script. Only the main thread calls handlers, and holds."""

    def __init__(self) -> None:
        self.own: dict[int, Callable[[int, Any], Any]] = {}
        """By signal."""
        self.in_c: set[int] = set()
        """Signals at which `faulthandler` prints where the script is."""
        self.depth = 0
        """How many callers hold handlers back."""
        self.due: list[int] = []
        """Signals that came meanwhile."""
        self.main = 0
        """The thread that calls handlers; 0: nothing is wrapped."""

    def called(self, number: int, frame: Any) -> None:
        """The signal has come."""
        if self.depth:
            self.due.append(number)
        elif (handler := self.own.get(number)) is not None:
            handler(number, frame)

    def call_due(self) -> None:
        """Call what was held back. The first that raises leaves the others for later."""
        while self.due:
            self.called(self.due.pop(0), None)


_handlers = _Handlers()


def watch(tell: Callable[[list[int]], None]) -> None:
    """Wrap what the script sets as handlers from now on, in this thread, the main one.

    `tell` is called with the signals of `TOLD` that the script handles, whenever these change. SIGINT raises
    KeyboardInterrupt, as in a script that runs alone.
    """
    set_handler, handler_of = signal.signal, signal.getsignal
    register, unregister = faulthandler.register, faulthandler.unregister
    for inherited in (signal.SIGUSR1, signal.SIGUSR2):  # the launcher's, which means nothing here
        if callable(handler_of(inherited)):
            set_handler(inherited, signal.SIG_DFL)
    _handlers.main = get_ident()

    @functools.wraps(set_handler)
    def set_wrapped(number: int, handler: Any) -> Any:
        before, known = own_of(number), handled()
        with held_back:  # a signal that comes meanwhile is the new handler's
            set_handler(number, _handlers.called if callable(handler) else handler)
            _handlers.in_c.discard(int(number))
            if callable(handler):
                _handlers.own[int(number)] = handler
            else:
                _handlers.own.pop(int(number), None)
            if handled() != known:
                tell(handled())
        return before

    @functools.wraps(handler_of)
    def own_of(number: int) -> Any:
        found = handler_of(number)
        return _handlers.own.get(int(number), found) if found == _handlers.called else found

    @functools.wraps(register)
    def register_told(signum: int, *arguments: Any, **named: Any) -> None:
        known = handled()
        register(signum, *arguments, **named)
        _handlers.in_c.add(int(signum))
        if handled() != known:
            tell(handled())

    @functools.wraps(unregister)
    def unregister_told(signum: int) -> bool:
        known, was = handled(), bool(cast(Any, unregister)(signum))
        _handlers.in_c.discard(int(signum))
        if handled() != known:
            tell(handled())
        return was

    faulthandler.register, faulthandler.unregister = cast(Any, register_told), cast(Any, unregister_told)
    signal.signal, signal.getsignal = cast(Any, set_wrapped), cast(Any, own_of)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def forget() -> None:
    """The script has ended: call none of its handlers any more."""
    _handlers.own.clear()


def handled() -> list[int]:
    """Return which signals of `TOLD` the script has a handler of its own for."""
    own = {number for number, handler in _handlers.own.items() if handler is not signal.default_int_handler}
    return sorted(TOLD & (own | _handlers.in_c))


class HeldBack:
    """Calls no handler meanwhile. In another thread than the main one, which calls none, this does nothing."""

    def __enter__(self) -> None:
        if get_ident() == _handlers.main:
            _handlers.depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() == _handlers.main:
            _handlers.depth -= 1
            if _handlers.due and not _handlers.depth:
                _handlers.call_due()


held_back = HeldBack()


def let_through(wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call handlers during this wait, though a caller holds them back: it can be left."""
    if get_ident() != _handlers.main:
        return wait(*args, **kwargs)
    depth, _handlers.depth = _handlers.depth, 0
    try:
        if _handlers.due:
            _handlers.call_due()
        return wait(*args, **kwargs)
    finally:
        _handlers.depth = depth


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """Have the function hold handlers back."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if get_ident() != _handlers.main:
            return function(*args, **kwargs)
        _handlers.depth += 1  # as `held_back` does, written out: this is called several times a step
        try:
            return function(*args, **kwargs)
        finally:
            _handlers.depth -= 1
            if _handlers.due and not _handlers.depth:
                _handlers.call_due()

    return call
