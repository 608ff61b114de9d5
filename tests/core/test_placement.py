"""Which hosts have shards of the store, by what `--shards-on` says and by the run."""

from __future__ import annotations

import pytest

from paceline.core.choice import choose
from paceline.core.placement import HEAD, check_shards_on, hosts_with_shards, why_idle
from paceline.errors import ConfigError
from paceline.protocols import registry

HOSTS = "c", "a", "b"
"""The head is `c`."""


def shards(
    said: str | None,
    *hosts: str,
    protocol: str = "bsp",
    restart: bool = False,
    later: bool = False,
) -> list[str]:
    choice = choose(protocol, registry())
    return hosts_with_shards(said, hosts or HOSTS, choice, restart=restart, later=later)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, ["c", "a", "b"]),
        ("all", ["c", "a", "b"]),
        ("head", ["c"]),
        ("c", ["c"]),
        ("b", ["b"]),
        ("b,c", ["c", "b"]),
        ("b,b", ["b"]),
        ("a,b,c", ["c", "a", "b"]),
    ],
)
def test_hosts_have_shards_as_the_flag_says_in_the_order_of_their_workers(
    said: str | None, expected: list[str]
) -> None:
    assert shards(said) == expected


@pytest.mark.parametrize("how", [None, "restart", "later"])
@pytest.mark.parametrize("said", [None, "all", HEAD, "a", "b", "a,b", "c"])
def test_a_host_without_workers_is_idle_if_and_only_if_it_has_no_shard(said: str | None, how: str | None) -> None:
    given = {"restart": False, "later": False} | ({} if how is None else {how: True})
    if how == "later" and said not in (None, HEAD):
        return  # it is refused whatever the hosts have
    idle = why_idle("b", said, choose("bsp", registry()), **given)
    assert bool(idle) == ("b" not in shards(said, **given))
    assert not idle or "host b has no workers" in idle


@pytest.mark.parametrize("how", ["restart", "later"])
def test_the_head_alone_has_the_store_by_default_where_hosts_come_and_go(how: str) -> None:
    assert shards(None, **{how: True}) == shards("head", **{how: True}) == ["c"]  # type: ignore[arg-type]


def test_shards_may_be_elsewhere_though_hosts_come_back_as_the_run_then_goes_on_from_its_snapshot() -> None:
    assert shards("all", restart=True) == ["c", "a", "b"]


@pytest.mark.parametrize("said", ["all", "a"])
def test_shards_elsewhere_are_refused_where_hosts_come_later(said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shards(said, later=True)
    assert str(caught.value).startswith(
        f"--shards-on is {said}, and --hosts lets hosts come later, while a host with a shard has to stay: say head, "
    )


@pytest.mark.parametrize("said", ["all", "head", "c", ""])
def test_on_one_host_there_is_nothing_to_say(said: str) -> None:
    assert shards(None, "c") == ["c"]
    with pytest.raises(
        ConfigError, match=f"^--shards-on is {said}, and the run has one host, whose store is whole: leave"
    ):
        shards(said, "c")


def test_a_protocol_without_a_store_has_no_shards() -> None:
    assert shards(None, protocol="ripples") == []
    with pytest.raises(ConfigError, match=r"^--shards-on is head, and ripples has no store: leave it out"):
        shards("head", protocol="ripples")


@pytest.mark.parametrize(
    ("said", "name"), [("d", "d"), ("a,d", "d"), ("", ""), ("a,,b", ""), ("all,a", "all"), ("A", "A")]
)
def test_a_name_that_no_host_has_is_refused_with_those_that_there_are(said: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shards(said)
    assert str(caught.value) == (
        f'--shards-on names "{name}", and the hosts are c, a, b: name some of these, or say all or head'
    )


def test_names_are_not_looked_at_before_all_hosts_have_come() -> None:
    choice = choose("asp", registry())
    check_shards_on("d", 3, choice, later=False)
    with pytest.raises(ConfigError, match="one host"):
        check_shards_on("d", 1, choice, later=False)


def test_without_a_store_a_host_without_workers_is_told_to_bring_some() -> None:
    """No other shards would give it something to do."""
    why = why_idle("b", None, choose("ad-psgd", registry()), restart=False, later=False)
    assert why == "host b has no workers, and ad-psgd has no store: give it workers, or leave it out"
