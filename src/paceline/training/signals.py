"""When the signal handlers of a worker's script run: not while a message is sent or memory changes hands.

A handler may raise, which would leave a message half sent, or a step half taken. torch's threads take signals, too, so
the kernel can't be told to hold them back. Instead, what the script hands to `signal.signal` is wrapped: a handler that
is due in such a moment is called after it, or when the worker begins to wait.
"""

from __future__ import annotations

import faulthandler
import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

from paceline.training.replaced import Patch, replace

P = ParamSpec("P")
T = TypeVar("T")

TOLD = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that the launcher passes on to scripts that have a handler."""


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
        self.tell: Callable[[list[int]], None] | None = None
        """See `watch`."""

    def called(self, number: int, frame: Any) -> None:
        """Handle a signal, or put it off while handlers are held back."""
        if self.depth:
            self.due.append(number)
        elif (handler := self.own.get(number)) is not None:
            handler(number, frame)

    @contextmanager
    def told_of(self) -> Iterator[None]:
        """Tell which signals the script handles, if this changes meanwhile."""
        known = handled()
        yield
        if handled() != known and self.tell is not None:
            self.tell(handled())

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
    for inherited in (signal.SIGUSR1, signal.SIGUSR2):  # the launcher's, which means nothing here
        if callable(signal.getsignal(inherited)):
            signal.signal(inherited, signal.SIG_DFL)
    _handlers.main, _handlers.tell = get_ident(), tell
    replace(HANDLERS)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _setting(set_handler: Callable[..., Any]) -> Callable[..., Any]:
    def set_wrapped(number: int, handler: Any) -> Any:
        before = _own_of(number)
        with held_back, _handlers.told_of():  # a signal that comes meanwhile is the new handler's
            set_handler(number, _handlers.called if callable(handler) else handler)
            _handlers.in_c.discard(int(number))
            if callable(handler):
                _handlers.own[int(number)] = handler
            else:
                _handlers.own.pop(int(number), None)
        return before

    return set_wrapped


_handler_of = signal.getsignal


def _own_of(number: int) -> Any:
    found = _handler_of(number)
    return _handlers.own.get(int(number), found) if found == _handlers.called else found


def _registering(register: Callable[..., None]) -> Callable[..., None]:
    def register_told(signum: int, *arguments: Any, **named: Any) -> None:
        with _handlers.told_of():
            register(signum, *arguments, **named)
            _handlers.in_c.add(int(signum))

    return register_told


def _unregistering(unregister: Callable[..., Any]) -> Callable[..., bool]:
    def unregister_told(signum: int) -> bool:
        with _handlers.told_of():
            was = bool(unregister(signum))
            _handlers.in_c.discard(int(signum))
        return was

    return unregister_told


HANDLERS = (
    Patch((signal,), ("signal",), _setting, "a handler that raises would leave a message half sent"),
    Patch((signal,), ("getsignal",), lambda _: _own_of, "the script finds what it has set"),
    Patch((faulthandler,), ("register",), _registering, "the launcher passes on the signals that a script has use for"),
    Patch((faulthandler,), ("unregister",), _unregistering, "the launcher no longer passes them on"),
)


def forget() -> None:
    """Call no handlers any more, as the script has ended."""
    _handlers.own.clear()


def handled() -> list[int]:
    """Return which signals of `TOLD` the script has a handler of its own for."""
    own = {number for number, handler in _handlers.own.items() if handler is not signal.default_int_handler}
    return sorted(TOLD & (own | _handlers.in_c))


class HeldBack:
    """Holds handlers back inside the block. Outside the main thread, which alone calls handlers, it does nothing."""

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
    """Call handlers during this wait although a caller holds them back: they may raise out of it."""
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
