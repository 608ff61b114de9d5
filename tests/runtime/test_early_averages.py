"""All-reduce over hosts that begin averages while workers compute: to the bits of one host, whatever scripts do."""

from __future__ import annotations

import pytest

from support.large_model import DOES, LARGE_MODEL
from support.launch import Launch
from support.runs import Run
from support.sound import right, same_bits, sound

FLAGS = ("-p", "all-reduce", "--threads", "1", "--tee", "none", "--record", "4")
EARLY = """
SELECT count(DISTINCT fetches.number) FROM fetches JOIN orders ON json_extract(orders.body, '$.group') = fetches.number
JOIN facts ON facts.id = orders.fact
WHERE fetches.kind = 'partial' AND fetches.host = 'node-0' AND orders.kind = 'Reduce' AND fetches.began < facts.at
"""


def early(run: Run) -> tuple[int, int]:
    """How many averages of that run were begun before they were ordered, and how many were not."""
    ((began,),), ((all_of_them,),) = run.rows(EARLY), run.rows("SELECT count(*) FROM orders WHERE kind = 'Reduce'")
    return began, all_of_them - began


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    launch = Launch(tmp_path_factory.mktemp("plain"))
    run = launch.run(LARGE_MODEL, "--emulate-hosts", "2", "-n", "1", *FLAGS, args=("plainly",)).completed()
    launch.close()
    return run


@pytest.mark.real_run
def test_every_average_but_the_first_two_begins_early(plain: Run) -> None:
    assert early(plain) == (16, 2)
    right(plain)


@pytest.mark.parametrize("does", ["plainly", *DOES])
def test_two_hosts_come_to_the_bits_of_one(does: str, plain: Run, launch: Launch) -> None:
    one = launch.run(LARGE_MODEL, "-n", "2", *FLAGS, args=(does,)).completed()
    two = plain
    if does != "plainly":
        two = launch.run(LARGE_MODEL, "--emulate-hosts", "2", "-n", "1", *FLAGS, args=(does,)).completed()
        assert early(two)[0] > 0
        sound(two)
    assert same_bits(one, two)


@pytest.mark.parametrize("does", ["plainly", "lacks", "dies", "leaves"])
def test_what_several_workers_of_a_host_add_up_early_is_replayed_to_the_bit(does: str, launch: Launch) -> None:
    """One may die while its gradient is on its way, or leave."""
    flags = ("--emulate-hosts", "2", "-n", "2", *FLAGS, "--on-loss", "continue")
    run = launch.run(LARGE_MODEL, *flags, args=(does,)).completed()
    assert early(run)[0] > 0
    assert run.rows("SELECT max(distance) FROM consensus") == [(0.0,)]
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    sound(run)


def test_what_is_encoded_does_not_begin_early_and_comes_to_the_bits_of_one_host(launch: Launch) -> None:
    one = launch.run(LARGE_MODEL, "-n", "2", *FLAGS, "--compress", "int8", args=("plainly",)).completed()
    flags = ("--emulate-hosts", "2", "-n", "1", *FLAGS, "--compress", "int8")
    two = launch.run(LARGE_MODEL, *flags, args=("plainly",)).completed()
    assert early(two)[0] == 0
    assert same_bits(one, two)


def test_shares_of_several_batches_are_averaged_soundly(launch: Launch) -> None:
    flags = ("--emulate-hosts", "2", "-n", "1", *FLAGS[2:], "-p", "balanced:protocol=all-reduce")
    sound(launch.run(LARGE_MODEL, *flags, args=("plainly",)).completed())
