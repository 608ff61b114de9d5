"""Machines that join over real links of 1 Gbit/s: each host is a network namespace of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from support.events import await_file
from support.joins import assert_sound, heard, joined, listens
from support.launch import Launch
from support.namespaces import Network
from support.recorded import checked
from support.runs import ended, replayed
from support.scripts import that_meets

pytestmark = [pytest.mark.needs_root, pytest.mark.usefixtures("token")]

SAMPLES = 2 * 240
LINGERS = """
if step == 2:
    touch(f"third-{me}")
if step >= 2 and not there("go-on"):
    time.sleep(0.1)
"""
"""Notes that the worker is in its third step, from which on all go slowly until they are to go on."""
WIDE = "nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 1536), nn.Linear(1536, 16)"
"""Makes the model one of several pieces, of which each host makes some."""


class Company:
    """A run on a network: the head, and the hosts that join it, which have so many workers."""

    def __init__(self, launch: Launch, network: Network, workers: tuple[int, ...], *flags: str, wide: bool = False):
        self.launch, self.workers = launch, sum(workers)
        script = that_meets(LINGERS).replace("nn.Linear(6, 16)", WIDE if wide else "nn.Linear(6, 16)")
        flags = (*listens(len(workers), workers[0], f"{network.address(0)}:0"), "--tee", "none", *flags)
        self.head = heard(launch.start(script, *flags, first=network.first(0)))
        self.others = [
            joined(launch, self.head, f"host-{host}", n, first=network.first(host))
            for host, n in enumerate(workers)
            if host
        ]

    def train(self) -> None:
        """Wait until all workers are in their third step."""
        for worker in range(self.workers):
            await_file(self.launch.tmp_path / f"third-{worker}")

    def go_on(self) -> None:
        (self.launch.tmp_path / "go-on").touch()

    def whole(self) -> None:
        """Let all go on to the end. Each sample was used once, and a replay on one machine comes to the same bits."""
        self.go_on()
        run = self.head.ended().completed()
        assert_sound(run, SAMPLES)
        assert "is lost" not in run.err
        assert [ended(other).code for other in self.others] == [0] * len(self.others)


# --- the network itself -------------------------------------------------------------------------


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_on_two_machines_is_checked_and_replayed_to_the_same_bits(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    Company(launch, networks(2), (1, 2), "-p", "ssp").whole()


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_cable_that_is_pulled_and_plugged_in_again_in_time_loses_nothing(
    host: int, launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(2)
    company = Company(launch, network, (1, 2), "-p", "asp", "--host-timeout", "20")
    company.train()
    network.cut(host)
    company.go_on()
    time.sleep(2)
    network.mend(host)
    company.whole()


@pytest.mark.long
@pytest.mark.parametrize("lacks", ["its cable", "power for its processes", "power"])
def test_a_machine_that_is_away_for_too_long_is_lost_and_the_others_go_on(
    lacks: str, launch: Launch, networks: Callable[..., Network]
) -> None:
    """Nobody says good-bye for a machine: the head hears no more of it. For its processes, its kernel does."""
    network = networks(3)
    company = Company(launch, network, (1, 1, 2), "-p", "ssp", "--on-loss", "continue", "--host-timeout", "3")
    company.train()
    if lacks != "power for its processes":
        network.cut(2)
    if lacks != "its cable":
        network.kill(2)
    company.head.says("host host-2 is lost: .*\n")
    company.go_on()
    run = company.head.ended().completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == SAMPLES
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out
    stays, other = map(ended, company.others)
    assert stays.code == 0
    assert other.code != 0


@pytest.mark.long
def test_a_machine_whose_cable_was_pulled_for_too_long_comes_back(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(2)
    company = Company(launch, network, (1, 2), "-p", "asp", "--restart", "1", "--host-timeout", "3")
    company.train()
    network.cut(1)
    company.head.says("host host-1 is lost: .*\n")
    network.mend(1)
    for worker in (1, 2):
        company.head.says(f"worker {worker} is back")
    company.whole()


@pytest.mark.long
@pytest.mark.parametrize("later", [False, True])
def test_joiners_that_cannot_reach_each_other_end_a_run_in_which_they_make_ranges(
    later: bool, launch: Launch, networks: Callable[..., Network]
) -> None:
    """If they lose each other later, nothing is said to either: what one sends is not acknowledged any more."""
    network = networks(3)
    if not later:
        network.separate(1, 2)
    company = Company(launch, network, (1, 1, 1), "-p", "asp", "--host-timeout", "3", wide=True)
    if later:
        company.train()
        network.separate(1, 2)
        company.go_on()
    run = company.head.ended()
    assert run.code == 3, run.err
    assert "host host-2 is lost: it and host host-1 can't reach each other" in run.err
    assert "failed: host host-2 made a part of every version, and it is lost" in run.out
    assert [ended(other).code for other in company.others] == [3, 3]
