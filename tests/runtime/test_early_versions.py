"""BSP over hosts that begin versions while workers compute: to the bits of one host, whatever scripts do."""

from __future__ import annotations

import pytest

from support.large_model import DOES, LARGE_MODEL
from support.launch import Launch
from support.runs import Run
from support.sound import right, same_bits, sound

FLAGS = ("-p", "bsp", "--threads", "1", "--tee", "none", "--record", "4")
HOSTS = ("--emulate-hosts", "2", "-n", "1", "--shards-on", "all")
EARLY = """
SELECT count(DISTINCT fetches.number) FROM fetches
JOIN orders ON orders.kind = 'ApplyUpdate' AND json_extract(orders.body, '$.version') = fetches.number
JOIN facts ON facts.id = orders.fact
WHERE fetches.kind = 'version' AND fetches.began < facts.at
"""
VERSIONS = 18
NEVER_EARLY = {"clips", "scales", "schedules"}
"""What a script does in each step for which versions are no more begun early: rarely, as that is tried again."""


def early(run: Run) -> int:
    """Of how many versions some was brought before they were ordered."""
    ((began,),) = run.rows(EARLY)
    return int(began)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    launch = Launch(tmp_path_factory.mktemp("plain"))
    run = launch.run(LARGE_MODEL, *HOSTS, *FLAGS, args=("plainly",)).completed()
    launch.close()
    return run


@pytest.mark.real_run
def test_most_versions_but_the_first_two_begin_early(plain: Run) -> None:
    assert early(plain) <= VERSIONS - 2
    assert early(plain) > 0
    right(plain)


@pytest.mark.parametrize("does", ["plainly", *DOES])
def test_two_hosts_come_to_the_bits_of_one(does: str, plain: Run, launch: Launch) -> None:
    one = launch.run(LARGE_MODEL, "-n", "2", *FLAGS, args=(does,)).completed()
    two = plain
    if does != "plainly":
        two = launch.run(LARGE_MODEL, *HOSTS, *FLAGS, args=(does,)).completed()
        assert early(two) > 0 or does in NEVER_EARLY
        sound(two)
    assert same_bits(one, two)


@pytest.mark.parametrize("does", ["dies", "leaves"])
def test_a_worker_that_leaves_as_its_gradient_is_on_its_way_leaves_nothing_of_it(does: str, launch: Launch) -> None:
    run = launch.run(LARGE_MODEL, *HOSTS, *FLAGS, "--on-loss", "continue", args=(does,)).completed()
    assert early(run) > 0
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    sound(run)


def test_snapshots_and_a_resumed_run_know_nothing_of_what_was_begun_early(launch: Launch) -> None:
    """The optimizer's state is that of the snapshot's version, though steps of the next one were made by then."""
    flags = (*HOSTS, *FLAGS, "--checkpoint", "1")
    whole = launch.run(LARGE_MODEL, *flags, args=("adamw",)).completed()
    first = launch.run(LARGE_MODEL, *flags, "--max-steps", "18", args=("adamw",)).completed()
    again = launch.resume(first.folder).completed()
    assert early(again) > 0
    assert same_bits(whole, again)
