"""`name:key=value,key=value`: how a protocol and its parameters are written, wherever one is named.

A protocol's `Config` declares each parameter once, with `parameter`: its default, what it means, its range. Its
`__post_init__` calls `check_parameters`, and then checks how two parameters fit together.
"""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.core.machine import Fragments, Machine, Outer, Part, Spec
from paceline.core.orders import SwitchProtocol
from paceline.core.reasons import OF_REPLICAS, Why, sentence
from paceline.errors import ConfigError

MOST_WHOLE = 2**53  # beyond it some readers of a ledger round whole numbers

T = TypeVar("T")


def parameter(
    default: T,
    what: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
    above: bool = False,
) -> T:
    """Return a field of a protocol's `Config`.

    `what`: the parameter's meaning and unit. `unit`: the word after a refused value. A number is at least `least`, or
    above it with `above`, and at most `most`.
    """
    about = {"what": what, "unit": unit, "least": least, "most": most, "above": above}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter that a `Config` declares. See `parameter`."""

    name: str
    default: Any
    kind: type[Any]
    """bool, int, float or str. A str is one of the words in `allowed`, or a protocol if `allowed` is empty."""
    allowed: tuple[str, ...] = ()
    """Words. A number may be one of them instead."""
    optional: bool = False
    """Whether it may be None, written `none`."""
    what: str = ""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: bool = False

    @property
    def rule(self) -> str:
        """What a value must be, such as `a whole number, 0 or more`."""
        if self.kind is str:
            return self._must_be(f"one of {', '.join(self.allowed)}" if self.allowed else "a protocol")
        nouns = {bool: "true or false", int: "a whole number", float: "a number"}
        return self._must_be(nouns[self.kind], self._range())

    def read(self, protocol: str, text: str) -> Any:
        """Return the allowed value that `text` writes. Raises ConfigError if there is none."""
        value: Any = text
        if self.optional and text == "none":
            value = None
        elif self.kind is bool and text in ("true", "false"):
            value = text == "true"
        elif self.kind in (int, float):
            with contextlib.suppress(ValueError):  # `check` refuses text that is not a number
                value = self.kind(text)
        self.check(protocol, value)
        return value

    def check(self, protocol: str, value: Any) -> None:
        """Raise ConfigError for a value of another kind, not finite, or out of range."""
        if (self.optional and value is None) or (isinstance(value, str) and value in self.allowed):
            return
        if not self._is_of_kind(value):
            raise self._refused(protocol, value, self.rule)
        if self.kind is float and not -math.inf < value < math.inf:
            raise self._refused(protocol, value, self._must_be("a finite number", self._range()))
        low = self.least is not None and (value <= self.least if self.above else value < self.least)
        high = self.most is not None and value > self.most
        if self.kind is int and value > MOST_WHOLE:
            raise self._refused(protocol, value, f"at most {MOST_WHOLE}")
        if low or high:
            raise self._refused(protocol, value, self._must_be(self._range()))

    def _is_of_kind(self, value: Any) -> bool:
        if self.kind is str:
            return not self.allowed and isinstance(value, str)
        return type(value) is self.kind or (self.kind is float and type(value) is int)  # a bool is no int here

    def _range(self) -> str:
        if self.least is None:
            return "" if self.most is None else f"{written(self.most)} or less"
        least = written(self.least)
        if self.most is None:
            return f"above {least}" if self.above else f"{least} or more"
        most = written(self.most)
        return f"above {least} and at most {most}" if self.above else f"from {least} to {most}"

    def _must_be(self, *parts: str) -> str:
        words = () if self.kind is str else self.allowed
        ends = [f"or {word}" for word in (*words, *(["none"] if self.optional else []))]
        return ", ".join(part for part in (*parts, *ends) if part)

    def _refused(self, protocol: str, value: Any, rule: str) -> ConfigError:
        given = f'"{value}"' if isinstance(value, str) else f"{written(value)} {self.unit}".rstrip()
        return ConfigError(f"{protocol}: {self.name} is {given}; it must be {rule}")


def declared(config: type[Any]) -> dict[str, Parameter]:
    """Return the parameters of the class `config` by name, in their order."""
    hints = get_type_hints(config)
    return {entry.name: _parameter(entry, hints[entry.name]) for entry in fields(config)}


def _parameter(entry: Field[Any], kind: Any) -> Parameter:
    among = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = tuple(word for one in among if get_origin(one) is Literal for word in get_args(one))
    kinds = [one for one in among if one is not NoneType and get_origin(one) is not Literal] or [str]
    if len(kinds) > 1 or kinds[0] not in (bool, int, float, str):
        raise TypeError(
            f"{entry.name} is a {kind}; a parameter is a bool, int, float, Literal, a number or a Literal, or a "
            "protocol's name"
        )
    return Parameter(
        name=entry.name,
        default=entry.default,
        kind=kinds[0],
        allowed=words,
        optional=NoneType in among,
        **entry.metadata,
    )


def check_parameters(protocol: str, config: Any) -> None:
    """Raise ConfigError, in one line, for the first value that is not allowed. For a Config's `__post_init__`."""
    for name, about in declared(type(config)).items():
        about.check(protocol, getattr(config, name))


@dataclass(frozen=True, slots=True)
class Choice:
    """A protocol with its parameters settled."""

    spec: Spec
    config: Any
    parts: tuple[Choice, ...] = ()
    """The protocols that it consists of, as `Spec.parts` names them."""
    inside: tuple[str, Choice] | None = None
    """Of a protocol around another one: the parameter that names that one, and that one."""

    @property
    def name(self) -> str:
        """Its name for people, everywhere: as it is typed, with the parameters that differ from their defaults.

        >>> from paceline.protocols import registry
        >>> choose("ssp:bound=2", registry()).name, choose("ssp:bound=3", registry()).name
        ('ssp:bound=2', 'ssp')
        """
        usual = declared(self.spec.config)
        return typed(
            self.spec.name, {key: value for key, value in self.parameters().items() if value != usual[key].default}
        )

    def machine(self) -> Machine:
        """Return a fresh machine."""
        return self.spec.machine(self.config, *(part._as_part() for part in self.parts))

    def parameters(self) -> dict[str, Any]:
        """Return all parameters' values, by name."""
        return asdict(self.config)

    def to_plain(self) -> dict[str, Any]:
        """Return it for a run's `config.toml`: None as `none`, and parts with all of their parameters."""
        config = {name: "none" if value is None else value for name, value in self.parameters().items()}
        parts = [*zip(self.spec.parts, self.parts, strict=True), *([self.inside] if self.inside else [])]
        return {"name": self.spec.name, "config": config | {key: str(part) for key, part in parts}}

    def outer(self, workers: int) -> Outer | None:
        """The outer optimizer that makes versions; None: the script's does, in the store or in the workers.

        `workers`: how many the run begins with.
        """
        return self.spec.outer(self.config, workers) if self.spec.optimizer == "outer" else None

    @property
    def has_replicas(self) -> bool:
        """Whether each worker owns a replica, at least while one of the parts decides."""
        return "replicas" in (one.spec.state for one in self.parts or (self,))

    @property
    def has_store(self) -> bool:
        """Whether a store makes versions, at least while one of the parts decides."""
        return "store" in (one.spec.state for one in self.parts or (self,))

    @property
    def fragments(self) -> Fragments:
        """The fragments of the parameters. See `Spec.fragments`."""
        return self.spec.fragments(self.config)

    @property
    def pieces(self) -> int:
        """Into how many pieces the script's batches are cut. See `Spec.pieces`."""
        return self.spec.pieces

    @property
    def rounds(self) -> bool:
        """Whether workers go in rounds at first, each of which waits for all of them."""
        part = self.part(self.begins)
        return part.spec.rounds and part.spec.waits_for_all(part.config)

    def gradients(self, workers: int) -> int:
        """Of how many gradients a version is the mean at first, with so many workers. Of differences it is of none."""
        part = self.part(self.begins)
        if part.spec.gradients is not None:
            return part.spec.gradients(part.config, workers)
        return workers if part.spec.rounds and part.spec.pushes == "gradient" else 1

    def unapplied(self, workers: int) -> int:
        """The most unapplied updates of one of so many workers, whichever part is active. See `Spec.unapplied`."""
        return max([self.spec.unapplied(self.config, workers), *(part.unapplied(workers) for part in self.parts)])

    @property
    def reasons(self) -> dict[str, str]:
        """The sentence of each code of a `why`, of the protocol and its parts."""
        of_parts = {
            (OF_REPLICAS if part.spec.state == "replicas" else "") + code: text
            for part in self.parts
            for code, text in part.spec.reasons.items()
        }
        return {**of_parts, **self.spec.reasons}

    def sentence(self, why: Why) -> str:
        """Write `why` out as a sentence of the protocol or one of its parts."""
        return sentence(why, self.reasons)

    @property
    def begins(self) -> int:
        """The number of the part that decides at first, from 0."""
        return self.spec.begins(self.config)

    def part(self, number: int) -> Choice:
        """Return the part of that number. A protocol without parts is its only one."""
        return self.parts[number] if self.parts else self

    def part_of(self, order: SwitchProtocol) -> int:
        """Return the number of the part that decides from that order on."""
        told = order.to, order.parameters
        return next(n for n, one in enumerate(self.parts) if (one.spec.name, tuple(one.parameters().items())) == told)

    def _as_part(self) -> Part:
        return Part(
            name=self.spec.name,
            parameters=tuple(self.parameters().items()),
            rounds=self.rounds,
            averages=self.spec.averages,
            optimizer=self.spec.optimizer,
            machine=self.machine(),
            state=self.spec.state,
        )

    def __str__(self) -> str:
        """With all parameters. What people read is `name`."""
        return typed(self.spec.name, self.parameters())


def choose(text: str, known: Mapping[str, Spec]) -> Choice:
    """Return the choice that `text` writes. Raises ConfigError, in one line, for any mistake.

    >>> from paceline.protocols import registry
    >>> str(choose("ssp:bound=2", registry()))
    'ssp:bound=2'
    """
    name, colon, rest = text.partition(":")
    spec = named(name, known)
    config = configured(name, spec.config, _settings(rest, spec, known) if colon else [])
    parts = tuple(_part(spec, key, getattr(config, key), known) for key in spec.parts)
    if spec.parts_misfit is not None and (why := spec.parts_misfit(config, [part.spec for part in parts])):
        raise ConfigError(why)
    if any(part.fragments.overlap for part in parts):
        raise ConfigError(f"{name}: a part has an overlap, which no switch can end yet; leave out overlap")
    if spec.around is not None:
        (key,), (part,) = spec.parts, parts
        return Choice(spec.around(config, part), replace(config, **{key: part.name}), inside=(key, part))
    named_parts = {key: part.name for key, part in zip(spec.parts, parts, strict=True)}
    return Choice(spec, replace(config, **named_parts), parts)


def configured(name: str, kind: type[T], settings: Iterable[str]) -> T:
    """Return a `kind` with these settings, each written `key=value`. Raises ConfigError, in one line, for any mistake.

    `name`: of the protocol or the codec whose parameters `kind` declares.
    """
    parameters = declared(kind)
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in parameters:
            allowed = ", ".join(parameters) or "none"
            raise ConfigError(f'{name}: unknown parameter "{key}"{nearest(key, parameters)}; known: {allowed}')
        if not equals:
            raise ConfigError(f"{name}: {key} has no value; write {name}:{key}=VALUE")
        if key in values:
            raise ConfigError(f"{name}: {key} is given twice; give it once")
        values[key] = parameters[key].read(name, value)
    return kind(**values)


def check_fit(choice: Choice, hosts: Sequence[str]) -> None:
    """Raise ConfigError, in one line, if the protocol can't train with one worker on each of these hosts.

    Runs and simulations both ask this.
    """
    for one in (choice, *choice.parts):
        if one.spec.misfit is not None and (why := one.spec.misfit(one.config, hosts)):
            raise ConfigError(why)


def _settings(text: str, spec: Spec, known: Mapping[str, Spec]) -> list[str]:
    """Split `text` into settings. A part's own settings, as in `first=dssp:lower=2,upper=8`, stay together.

    A key that both the whole and the part have belongs to the whole.
    """
    own = declared(spec.config)
    inner: Mapping[str, Parameter] = {}  # the parameters of the part in the last setting, if that sets any
    settings: list[str] = []
    for setting in text.split(","):
        key, _, value = setting.partition("=")
        if key in inner and key not in own:
            settings[-1] += f",{setting}"
            continue
        settings.append(setting)
        name, colon, _ = value.partition(":")
        inner = declared(known[name].config) if colon and key in spec.parts and name in known else {}
    return settings


def _part(whole: Spec, key: str, text: str, known: Mapping[str, Spec]) -> Choice:
    """Return the protocol that this parameter of `whole` names. It has no parts itself."""
    name = text.partition(":")[0]
    if name == whole.name:
        raise ConfigError(f"{whole.name}: {key} is {name}; {name} can't contain itself")
    fit = {spec.name: spec for spec in known.values() if not spec.parts}
    if name in known and name not in fit:
        raise ConfigError(f"{whole.name}: {key} is {name}; it must be one of {', '.join(fit)}")
    try:
        return choose(text, fit)
    except ConfigError as error:
        raise ConfigError(f'{whole.name}: {key} is "{text}": {error}') from None


def named(name: str, known: Mapping[str, Spec]) -> Spec:
    """Return the protocol of that name. Raises ConfigError, in one line, if there is none."""
    if name not in known:
        hint = _apart(name, known) or _without_key(name, known) or nearest(name, known)
        raise ConfigError(f'unknown protocol "{name}"{hint}; known: {", ".join(known)}')
    return known[name]


def _apart(text: str, known: Iterable[str]) -> str:
    """Return a hint for a name with commas, which was meant as several protocols, or as parameters."""
    name, comma, rest = text.partition(",")
    if not comma:
        return ""
    if "=" in rest:
        return f' (did you mean "{name}:{rest}"?)'
    near = [difflib.get_close_matches(part.strip().lower(), list(known), n=1, cutoff=0.5) for part in text.split(",")]
    several = " ".join(f"-p {close[0] if close else 'NAME'}" for close in near)
    return f" (each -p names one; commands that take several take {several})"


def _without_key(text: str, known: Mapping[str, Spec]) -> str:
    """Return a hint for `ssp=3`, a value without its parameter's name."""
    name, equals, value = text.partition("=")
    keys = list(declared(known[name].config)) if equals and name in known else []
    return f' (did you mean "{name}:{keys[0] if len(keys) == 1 else "KEY"}={value}"?)' if keys else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean "…"?)` if a known name is near, or an empty text."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f' (did you mean "{close[0]}"?)' if close else ""


def typed(name: str, config: Mapping[str, Any]) -> str:
    """The protocol as it is typed, with all of these parameters."""
    settings = ",".join(f"{key}={written(value)}" for key, value in config.items())
    return f"{name}:{settings}" if settings else name


def written(value: Any) -> str:
    """Return a parameter's value as it is typed: `true`, `none`, `0.00001` (not `1e-05`)."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}"
    return str(value)
