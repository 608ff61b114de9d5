"""What holds for every host, with scripted faults. A new implementation is one more entry of `HOSTS`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from paceline.coordinator.agent import LONG
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReplicaCopied,
    UpdateArrived,
)
from paceline.core.orders import (
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
    StepReplica,
)
from paceline.errors import MessageUnreadable, PeerLost, RunFailed
from paceline.host.contract import NotHere
from paceline.host.events import (
    ComputesTaken,
    HandedOver,
    Impossible,
    MeanVoid,
    Prepared,
    ProcessLost,
    SnapshotFileFailed,
    VersionBrought,
    VersionCommitted,
    VersionWritten,
    WorkerSaid,
)
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.records.times import FetchTimes
from paceline.scenario.scenario import Network
from support.companies import (
    ADDER,
    PROCESS,
    Averagers,
    Company,
    company,
    elsewhere,
    idle_company,
)
from support.processes import descriptors
from support.run_state import OFFER

Makes = Callable[..., Company]
"""Makes a host whose workers train."""
HOSTS: dict[str, Makes] = {"local": company, "several": elsewhere}
"""By name."""


@pytest.fixture(params=HOSTS)
def hosts(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def training(hosts: str) -> Makes:
    def made(workers: int = 3, protocol: str = "asp", **given: Any) -> Company:
        if hosts == "several" and registry()[protocol].state == "replicas":
            pytest.skip("only protocols with a store run on several hosts")
        return HOSTS[hosts](workers, protocol, **given)

    return made


Action = Callable[[Company], object]


def order(given: Order) -> Action:
    return lambda company: company.carry_out(given)


def release(step: int, version: int, parameters: Any = "pull") -> Action:
    return order(Release(worker=1, step=step, version=version, parameters=parameters))


def computed(step: int) -> Action:
    return lambda company: company.computed(1, step)


def made(version: int) -> Action:
    return lambda company: company.said_by_store(messages.store.Committed(version, 0, None))


def says(message: messages.Message) -> Action:
    return lambda company: company.crew.hear(1, message)


SERVED: list[Action] = [
    release(0, 0),
    says(messages.worker.SnapshotWanted(hold=False)),
    computed(0),
    order(StartPush(worker=1, step=0)),
    order(ApplyUpdate(version=1, contributions=((1, 0, 1.0),))),
    order(StartPull(worker=1, version=1)),
    order(Release(worker=1, step=1, version=0, parameters="eager")),
    made(1),
    says(messages.worker.SnapshotTaken()),
    computed(1),
    order(StartPush(worker=1, step=1)),
    release(2, 1, "held"),
    says(messages.worker.SnapshotWanted(hold=True)),
    computed(2),
    release(3, 1),
]
"""What a worker goes through that a store serves: it looks, pulls ahead, and waits for a place in the end."""

REPLICATED: list[Action] = [
    release(0, 0, "own"),
    computed(0),
    order(StepReplica(worker=1, step=0, version=1)),
    lambda company: company.stepped(1, 0),
    order(Reduce(group=0, members=(0, 1), what="parameters")),
]
"""What a worker goes through that owns a replica, until it averages."""


class TestOrders:
    """Orders are carried out in order, and what comes of them is told once."""

    def test_a_step_s_orders_end_in_facts_and_a_version(self, training: Makes) -> None:
        one = training(1)
        one.carry_out(Release(worker=0, step=0, version=0))
        assert [event for event in one.reports.events if not isinstance(event, FetchTimes | VersionBrought)] == [
            ComputesTaken(0),
            ParametersTaken(worker=0, version=0, at=0.0),
        ]
        one.computed(0, 0)
        assert one.host.updates(0).coming == (0,)
        one.carry_out(StartPush(worker=0, step=0))
        assert (one.facts[1:], one.host.updates(0).coming) == ([UpdateArrived(worker=0, step=0, at=0.0)], ())
        one.orders(1, (0, 0))
        one.carry_out(Release(worker=0, step=1, version=1))
        assert (one.host.progress.idle, one.host.progress.busy_with) == (
            False,
            "the parameter store is making version 1",
        )
        one.make()
        assert one.reports.told(VersionCommitted) == [(1, 0, 0.0)]
        assert one.facts[2:] == [ParametersTaken(worker=0, version=1, at=0.0)]
        assert [type(said).__name__ for _, said in one.told] == ["Compute", "Compute"]
        one.host.record(1, [0], "file", "mean")
        assert one.host.progress.busy_with == "the parameter store is writing a version to disk"
        one.said_by_store(messages.store.VersionRecorded(1, "digest"))
        assert one.reports.told(VersionWritten) == [(1, "digest", None)]
        assert one.host.progress.idle

    def test_the_optimizer_s_state_goes_to_the_worker_or_the_run_is_told_why_not(self, training: Makes) -> None:
        one = training(1)
        one.crew.hear(0, messages.worker.StateWanted())
        one.said_by_store(messages.store.StateReady(0, None), "the state")
        assert [said for _, said in one.told] == [messages.worker.OptimizerState()]
        assert one.crew.handed == [(0, "the state")]
        one.crew.hear(0, messages.worker.StateWanted())
        one.said_by_store(messages.store.StateReady(0, "it can't be packed"))
        assert one.reports.told(Impossible) == [("it can't be packed",)]

    def test_a_process_in_the_place_of_one_that_died_gets_only_what_it_has_asked_for(self, training: Makes) -> None:
        two = training(2)
        two.crew.hear(0, messages.worker.StateWanted())
        two.leave(0)
        two.returns(0)
        two.said_by_store(messages.store.StateReady(0, None), "of the first one")
        two.crew.hear(0, messages.worker.StateWanted())
        two.said_by_store(messages.store.StateReady(0, None), "of its own")
        assert two.crew.handed == [(0, "of its own")]

    def test_what_is_recorded_comes_along_wherever_the_worker_is(self, training: Makes, tmp_path: Path) -> None:
        """So a path of this machine is told to no other, and several workers may be told of one version."""
        one, file = training(2), tmp_path / "7.safetensors"
        file.write_text("version 7")
        before = descriptors()
        for worker in (1, 0):
            one.host.show_recorded(worker, messages.worker.Evaluate(7), str(file))
        one.host.show_recorded(0, messages.worker.FinalRecorded(), str(file))
        one.host.show_recorded(1, messages.worker.FinalRecorded(), None)
        assert one.told == [
            *((worker, messages.worker.Evaluate(7)) for worker in (1, 0)),
            (0, messages.worker.FinalRecorded()),
            (1, messages.worker.FinalRecorded()),
        ]
        assert one.crew.handed == [(1, "version 7"), (0, "version 7"), (0, "version 7"), (1, None)]
        assert descriptors() == before
        with pytest.raises(RunFailed, match="/none can't be read any more: No such file or directory"):
            one.host.show_recorded(0, messages.worker.Evaluate(8), str(tmp_path / "none"))

    @pytest.mark.parametrize(
        ("protocol", "strange", "what"),
        [
            ("asp", Release(worker=7, step=0, version=0), "no worker 7"),
            ("asp", StartPush(worker=7, step=0), "no worker 7"),
            ("asp", StartPush(worker=0, step=4), "Update(worker=0, step=4, kind='update') is not here"),
            (
                "asp",
                ApplyUpdate(version=1, contributions=((0, 4, 1.0),)),
                "Update(worker=0, step=4, kind='update') is not here",
            ),
            (
                "asp",
                Release(worker=0, step=0, version=0, parameters="own"),
                "worker 0 has not computed the step before 0",
            ),
            ("ad-psgd", StepReplica(worker=7, step=0, version=1), "no worker 7"),
            ("ad-psgd", Reduce(group=0, members=(0, 7), what="parameters"), "worker 7 owns no replica"),
            (
                "all-reduce",
                Reduce(group=0, members=(0, 1), what="gradients", contributions=((0, 4, 0.5), (1, 4, 0.5))),
                "Update(worker=0, step=4, kind='update') is not here",
            ),
        ],
    )
    def test_an_order_about_what_is_not_here_is_refused_in_one_sentence_and_changes_nothing(
        self, protocol: str, strange: Order, what: str, training: Makes
    ) -> None:
        two = training(2, protocol)
        claims = two.claims()
        with pytest.raises(NotHere) as refused:
            two.carry_out(strange)
        assert what in str(refused.value)
        assert (two.reports.events, two.told, two.claims()) == ([], [], claims)

    @pytest.mark.parametrize("protocol", ["asp", "ad-psgd"])
    def test_what_is_said_twice_is_told_once(self, protocol: str, training: Makes) -> None:
        two = training(2, protocol)
        for action in SERVED[:1] if protocol == "asp" else REPLICATED:
            action(two)
        for _ in range(2):
            two.crew.hear(1, messages.worker.Declined())
            two.leave(1)
            if protocol == "ad-psgd" and not two.facts:
                Averagers(two).average(0)
            two.host.tell(ReduceFailed(group=0, lost=(1,), at=0.0))
        assert len(two.facts) == 1

    def test_it_is_told_what_a_worker_waits_for_until_it_computes(self, training: Makes) -> None:
        one = training(1, unapplied=1)
        one.pushes(0, 0)
        one.carry_out(Release(worker=0, step=1, version=0))
        assert one.reports.waits[0] == "a place"
        one.apply(1, (0, 0))
        assert one.reports.waits[0] is None
        one.computed(0, 1)
        one.carry_out(StartPush(worker=0, step=1))
        one.orders(2, (0, 1))
        one.carry_out(Release(worker=0, step=2, version=2))
        assert one.reports.waits[0] == "version 2"
        one.make()
        assert one.reports.waits[0] is None
        assert [step.step for _, step in one.told if isinstance(step, messages.worker.Compute)] == [0, 1, 2]

    def test_a_declined_step_needs_no_place(self, training: Makes) -> None:
        """Its worker may be released again, under a protocol that was switched to."""
        one = training(1, unapplied=1)
        for step in range(2):
            one.carry_out(Release(worker=0, step=step, version=0, parameters="held"))
            one.crew.hear(0, messages.worker.Declined())
        assert len(one.told) == 2


class TestLeaving:
    """Whenever a worker goes, nothing is kept for it once the machine has been told."""

    @pytest.mark.parametrize("point", range(len(SERVED) + 1))
    @pytest.mark.parametrize("died", [True, False])
    def test_a_served_worker_that_goes_at_any_point_leaves_no_claim(
        self, point: int, died: bool, training: Makes
    ) -> None:
        two = training(2)
        for action in SERVED[:point]:
            action(two)
        if died:
            two.leave(1)
        else:
            two.host.left(1, died=True)
            two.crew.hear(1, messages.worker.SnapshotWanted(hold=False))  # its script may go on with the model
            two.host.gone(1)
        assert two.host.updates(1).coming == ()
        told = len(two.told)
        for step in range(4):
            two.carry_out(DropUpdate(worker=1, step=step, samples="return"))
        if two.host.progress.busy_with is not None:
            two.make()
        two.carry_out(Release(worker=1, step=4, version=0))
        two.carry_out(StartPull(worker=1, version=0))
        assert two.claims_of(1) == []
        assert two.claims() == [("newest version",)]
        assert two.told[told:] == []

    def test_what_a_worker_was_to_write_for_all_is_void_when_it_goes(self, training: Makes) -> None:
        two = training(2)
        two.host.adopt(1)
        two.leave(1)
        assert two.claims_of(1) == []
        two.host.adopt(0)
        assert [type(said).__name__ for _, said in two.told] == ["AdoptInto", "AdoptInto"]


ENDS: dict[str, tuple[Action, str]] = {
    "it dies": (
        lambda company: company.loop.ends[PROCESS](),
        "the parameter store's process died; the files in versions/ are whole",
    ),
    "it can't be understood": (
        lambda company: company.said_by_store(MessageUnreadable("no message")),
        "the parameter store sent a message that can't be read (no message)",
    ),
    "it fails": (
        lambda company: company.said_by_store(messages.store.StoreFailed("no room")),
        "the parameter store failed: no room",
    ),
    "it says that it made what it was not told to": (made(9), "the parameter store sent Committed out of turn"),
    "it says that it wrote what it was not told to": (
        lambda company: company.said_by_store(messages.store.VersionRecorded(9, "")),
        "the parameter store sent VersionRecorded out of turn",
    ),
    "it comes a second time": (
        lambda company: company.said_by_store(messages.store.StoreReady(PROCESS + 1, "")),
        "the parameter store sent StoreReady out of turn",
    ),
}
"""By what becomes of the store process: how that shows, and what is told."""
DIES, _ = ENDS["it dies"]


class TestArithmetic:
    """The store process may go at any point: that is told once, and the host can be asked whatever it was."""

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("point", range(len(SERVED) + 1))
    def test_its_loss_is_told_once_and_every_order_after_it_is_harmless(
        self, point: int, end: str, training: Makes
    ) -> None:
        two = training(2)
        for action in SERVED[:point]:
            action(two)
        shows, line = ENDS[end]
        shows(two)
        assert two.reports.of(ProcessLost) == [ProcessLost(line)]
        DIES(two)
        sent = list(two.store.sent)
        for action in SERVED[point:]:
            if action is not SERVED[7]:  # the version is made by no one
                action(two)
        two.host.record(int(point > 7), [0], "file", "mean")
        assert two.reports.of(ProcessLost) == [ProcessLost(line)]
        assert two.host.progress.lost
        assert two.host.progress.idle
        assert two.store.sent == sent

    @pytest.mark.parametrize("steps_first", [True, False])
    def test_a_mean_has_no_replica_whose_process_ended_in_a_step(
        self,
        steps_first: bool,
    ) -> None:
        """The step may have left half of it behind."""
        two = company(2, "ad-psgd")
        for worker in (0, 1):
            two.carry_out(Release(worker=worker, step=0, version=0, parameters="own"))
            two.computed(worker, 0)
            two.carry_out(StepReplica(worker=worker, step=0, version=1))
        two.host.record(1, [0, 1], "file", "mean")
        files = two.host.keep(5, "folder", 1, [0, 1])
        assert files[1:] == ["replica-0.safetensors", "replica-1.safetensors"]
        if steps_first:
            two.stepped(1, 0)
        two.leave(1)
        two.stepped(0, 0)
        means = [message.version for message in two.store.sent if isinstance(message, messages.store.RecordMean)]
        kept = sum(isinstance(message, messages.store.KeepReplica) for message in two.store.sent)
        assert (means, kept) == (([1], 2) if steps_first else ([], 0))
        assert two.reports.told(MeanVoid) == ([] if steps_first else [(1, [1])])
        assert [file for _, file, _ in two.reports.told(SnapshotFileFailed)] == ([] if steps_first else files[1:])
        if not steps_first:
            two.host.record(1, [0, 1], "file", "mean")
            assert two.reports.told(MeanVoid) == [(1, [1])] * 2, "what lies there is no replica still"
            two.host.record(1, [0], "file", "mean")
            assert isinstance(two.store.sent[-1], messages.store.RecordMean)

    def test_a_snapshot_has_no_buffers_of_workers_that_have_died(self, training: Makes) -> None:
        """Theirs are as old as their last steps, and a resumed run would begin with them."""
        three = training(3)
        three.leave(1)
        three.host.keep(5, "folder", 0, [0, 2])
        assert {0, 1, 2} & {*three.store.sent[-1].workers} == {0, 2}

    def test_what_a_worker_packs_for_a_snapshot_is_written(self, training: Makes) -> None:
        two = training(2)
        two.host.keep(5, "folder", 0, [0, 1])
        for worker in (1, 0):
            two.crew.hear(worker, messages.worker.Kept(5, 0, 0, None), f"what worker {worker} keeps")
        assert two.store.sent[-2:] == [
            messages.store.KeepWorker(f"folder/worker-{worker}.safetensors") for worker in (1, 0)
        ]
        assert two.store.packed == ["what worker 1 keeps", "what worker 0 keeps"]
        assert [worker for worker, *_ in two.reports.told(WorkerSaid)] == [1, 0]

    def test_what_a_worker_has_changed_the_first_version_to_is_that_version(self, training: Makes) -> None:
        two = training(2)
        two.host.adopt(1)
        ((_, told),) = two.told
        assert isinstance(told, messages.worker.AdoptInto)
        two.crew.hear(1, messages.worker.AdoptionWritten(), "the optimizer's state")
        assert (two.store.sent, two.store.packed) == ([messages.store.InstallAdopted()], ["the optimizer's state"])
        two.carry_out(Release(worker=0, step=0, version=0, parameters="pull"))
        _, begun = two.told[-1]
        assert isinstance(begun, messages.worker.Compute)
        assert begun.slot == told.slot
        two.computed(0, 0)
        two.carry_out(StartPush(worker=0, step=0, scale=1.0))
        two.orders(1, (0, 0))
        assert two.commits()[0].source == told.slot
        assert two.claims_of(1) == []

    def test_a_mean_has_no_replica_that_a_joiner_has_yet_to_put_there(self) -> None:
        one = company(1, "ad-psgd")
        one.leave(0)
        one.host.returns(0)
        one.crew.hear(0, OFFER)
        one.host.admit(0, 0, 0.0)
        one.host.join(0, [])
        one.host.begin_anew(0, 1, os.devnull)
        one.host.record(2, [0], "file", "mean")
        assert one.reports.told(MeanVoid) == [(2, [0])]
        one.carry_out(Release(worker=0, step=0, version=1, parameters="own"))
        one.computed(0, 0)
        one.host.record(2, [0], "file", "mean")
        assert isinstance(one.store.sent[-1], messages.store.RecordMean)

    def test_a_worker_that_can_t_fork_it_is_ended_and_another_one_may(self) -> None:
        two = idle_company(2)
        two.host.open()
        for worker in (0, 1):
            two.crew.hear(worker, OFFER)
        two.host.prepare(0)
        first = two.store
        two.said_by_store(PeerLost())
        assert (two.crew.killed, two.reports.told(ProcessLost)) == ([0], [])
        two.host.gone(0)
        assert first.closed
        two.host.prepare(1)
        two.said_by_store(messages.store.StoreReady(PROCESS, "beginning"))
        assert two.reports.told(Prepared) == [("beginning",)]
        assert [(worker, type(said).__name__) for worker, said in two.told] == [(0, "ForkStore"), (1, "ForkStore")]


def means(company: Company) -> list[int]:
    """Groups whose means are kept."""
    return [owner[1] for owner in company.claims() if owner[0] == "mean of group"]


class TestAverages:
    """A group has the mean, all of it at once, or none of it has."""

    def test_a_mean_of_gradients_is_kept_until_every_member_was_told_to_step_with_it_or_has_left(self) -> None:
        three = company(3, "all-reduce")
        averagers = Averagers(three)
        for worker in range(3):
            three.carry_out(Release(worker=worker, step=0, version=0, parameters="own"))
            three.computed(worker, 0)
        shares = tuple((worker, 0, 1 / 3) for worker in range(3))
        three.carry_out(Reduce(group=0, members=(0, 1, 2), what="gradients", contributions=shares))
        for worker in range(3):
            averagers.average(worker)
        three.host.tell(three.facts[-1])
        for worker in (0, 1):
            three.carry_out(StepReplica(worker=worker, step=0, version=1, group=0))
            three.stepped(worker, 0)
            assert means(three) == [0]
        three.leave(2)
        assert means(three) == []

    def test_a_share_that_can_t_be_read_ends_its_worker_and_an_unasked_one_counts_for_nothing(self) -> None:
        two = company(2, "ad-psgd")
        averagers = Averagers(two)
        averagers.says(0, messages.worker.ShareAveraged(5))
        averagers.says(1, MessageUnreadable("no message"))
        assert two.crew.given_up == [(1, "its averager sent a message that can't be read (no message)")]
        assert two.reports.events == []


Move = tuple[int | None, Action]
"""Whose doing it is, and what; None: an order, a fact, or what the store process says."""


def said(worker: int, message: messages.Message, packed: str | None = None) -> Move:
    return worker, lambda company: company.crew.hear(worker, message, packed)


def hands(source: int, order: int = -1) -> Move:
    """It packs, if it was told to. `order`: for which time that it was told to; the last one."""

    def hand(company: Company) -> None:
        asked = [
            said for worker, said in company.told if worker == source and isinstance(said, messages.worker.HandOver)
        ]
        if asked:
            message = messages.worker.Handed(asked[order].worker, asked[order].joining, None)
            company.crew.hear(source, message, f"worker {source}'s" + " of before" * (order != -1))

    return source, hand


def ordered(given: Order) -> Move:
    return None, order(given)


def joins(*others: int) -> Move:
    """The machine is told that worker 1 has joined."""
    return None, lambda company: company.host.join(1, others)


def told(fact: Fact) -> Move:
    """The machine is told of that, if it has happened."""

    def tell(company: Company) -> None:
        if fact in company.facts:
            company.host.tell(fact)

    return None, tell


COMES: list[Move] = [
    (1, lambda company: company.returns(1)),
    said(1, OFFER),
    (1, lambda company: company.host.admit(1, 0, 0.0)),
    said(1, messages.worker.SnapshotWanted(hold=False)),
    said(1, messages.worker.SnapshotTaken()),
    said(1, messages.worker.LeaseWanted(0, 1, "")),
]
"""Worker 1, which has died, comes back."""

SERVED_JOIN: list[Move] = [
    ordered(Release(worker=0, step=1, version=1)),
    joins(0, 2),
    ordered(Release(worker=1, step=1, version=0)),
    hands(2),
    (None, made(1)),
    hands(0),
    (1, lambda company: company.computed(1, 1)),
    ordered(StartPush(worker=1, step=1)),
]
"""It joins those that a store serves. Worker 0 waits for a version before it can hand over."""
PACKS = {worker: [who for who, _ in SERVED_JOIN].index(worker) for worker in (0, 2)}
"""At which point each of the others packs."""

COPIED = ReplicaCopied(source=0, worker=1, at=0.0)

REPLICATED_JOIN_AGAIN: list[Move] = [
    ordered(CopyReplica(source=2, worker=1)),
    hands(2),
    told(ReplicaCopied(source=2, worker=1, at=0.0)),
]
"""Its source has died."""

GOES = {"the joiner": [1], "the first other": [0], "the second other": [2], "both others": [0, 2], "all": [0, 1, 2]}


def without_worker_1(training: Makes, protocol: str) -> Company:
    """Three workers train, of which worker 1 has died. Version 1 is being made."""
    three = training(3, protocol)
    for worker in range(3):
        parameters: Any = "own" if protocol == "ad-psgd" else "pull"
        three.carry_out(Release(worker=worker, step=0, version=0, parameters=parameters))
        three.computed(worker, 0)
    if protocol == "ad-psgd":
        for worker in (0, 2):
            three.carry_out(StepReplica(worker=worker, step=0, version=1))
            three.stepped(worker, 0)
    else:
        three.carry_out(StartPush(worker=0, step=0))
        three.orders(1, (0, 0))
    three.leave(1)
    three.carry_out(DropUpdate(worker=1, step=0, samples="return"))
    three.crew.told.clear()
    three.reports.events.clear()
    three.facts.clear()
    return three


def make(company: Company, moves: list[Move], gone: Collection[int] = ()) -> None:
    """Let all that come about which workers that are gone have no part in."""
    for worker, action in moves:
        if worker not in gone:
            action(company)


def alone_comes() -> list[Move]:
    """Worker 0, which has died and was alone, joins, and nobody hands over to it."""
    return [
        (0, lambda company: company.returns(0)),
        said(0, OFFER),
        (0, lambda company: company.host.admit(0, 0, 0.0)),
        (0, lambda company: company.host.join(0, [])),
    ]


class TestJoins:
    """A worker that joins waits for nobody but those that hand over to it, between two of their steps."""

    @pytest.mark.parametrize("protocol", ["asp", "ad-psgd"])
    @pytest.mark.parametrize("point", range(len(COMES) + 1))
    def test_one_that_goes_before_it_joins_leaves_no_claim_and_nothing_open_and_may_come_again(
        self, point: int, protocol: str, training: Makes
    ) -> None:
        three = without_worker_1(training, protocol)
        before, claims = descriptors(), sorted(three.claims())
        for _ in range(2):
            make(three, COMES[:point])
            three.host.gone(1)  # it has left before
            assert (descriptors(), sorted(three.claims())) == (before, claims)
        assert three.crew.handed == []
        make(three, COMES)
        assert [type(said).__name__ for worker, said in three.told if worker == 1][-2:] == ["Begin", "SnapshotReady"]

    @pytest.mark.parametrize("who", GOES)
    @pytest.mark.parametrize("point", range(len(SERVED_JOIN) + 1))
    def test_whoever_goes_at_any_point_leaves_no_claim_and_nothing_open_and_a_joiner_takes_up_once(
        self, point: int, who: str, training: Makes
    ) -> None:
        three, gone = without_worker_1(training, "asp"), GOES[who]
        before = descriptors()
        make(three, [*COMES, *SERVED_JOIN[:point]])
        for worker in gone:
            three.leave(worker)
        so_far = len(three.told)
        make(three, SERVED_JOIN[point:], gone)
        assert not {worker for worker, _ in three.told[so_far:]} & set(gone)
        for worker in gone:
            for step in range(2):
                three.carry_out(DropUpdate(worker=worker, step=step, samples="return"))
            assert three.claims_of(worker) == []
        assert descriptors() == before
        assert len(three.crew.handed) == len(three.reports.told(HandedOver))
        if 1 not in gone:
            packed = [f"worker {one}'s" for one in (0, 2) if one not in gone or point > PACKS[one]]
            assert three.crew.handed == [(1, packed[0] if packed else None)]

    def test_a_version_that_the_process_before_waited_for_is_not_its_next_one_s(self, training: Makes) -> None:
        two = training(2)
        two.pushes(0, 0)
        two.orders(1, (0, 0))
        two.carry_out(Release(worker=1, step=0, version=1))
        two.leave(1)
        make(two, [*COMES, joins(0)])
        two.carry_out(Release(worker=1, step=1, version=1))
        two.make()
        taken = [fact for fact in two.facts if isinstance(fact, ParametersTaken) and fact.worker == 1]
        assert [fact.version for fact in taken] == [1]

    def test_a_version_has_the_hyperparameters_of_the_contributor_that_has_served_longest(
        self, training: Makes
    ) -> None:
        """Who has served is counted as workers join: updates of a worker that left may be applied after its return."""
        two = training(2)

        def steps(step: int, *rates: float) -> None:
            for worker, rate in enumerate(rates):
                two.carry_out(Release(worker=worker, step=step, version=step))
                two.computed(worker, step, [{"lr": rate}])
                two.carry_out(StartPush(worker=worker, step=step))

        steps(0, 0.1, 0.2)
        two.leave(0)
        make(two, alone_comes()[:3])
        two.apply(1, (0, 0), (1, 0))
        two.host.join(0, [1])
        make(two, [hands(1)])
        steps(1, 0.3, 0.4)
        two.apply(2, (0, 1), (1, 1))
        assert [commit.scalars for commit in two.commits()] == [[{"lr": 0.1}], [{"lr": 0.4}]]

    @pytest.mark.parametrize("alone", [True, False])
    def test_a_copy_of_which_the_machine_is_not_told_has_no_effect(
        self,
        alone: bool,
    ) -> None:
        """In a replay the source dies when it is said to, and may have given its replica before."""
        three = without_worker_1(company, "ad-psgd")
        before = descriptors()
        make(three, [*COMES, joins(0, 2), ordered(CopyReplica(source=0, worker=1)), hands(0)])
        three.leave(0)
        if alone:
            three.leave(2)
            three.host.begin_anew(1, None, "")
            make(three, [told(COPIED)])
        else:
            make(three, REPLICATED_JOIN_AGAIN)
        assert three.crew.handed == [(1, None if alone else "worker 2's")]
        assert descriptors() == before

    @pytest.mark.parametrize("source", ["dies before it has packed", "dies, and the copy is not told of", "lives"])
    def test_a_worker_that_has_a_replica_keeps_it_until_the_copy_of_another_one_is_there(
        self,
        source: str,
    ) -> None:
        """It has resumed. If the source dies, it goes on from its own, though a replay may have made the copy."""
        two = company(2, "ad-psgd")
        for worker in range(2):
            two.carry_out(Release(worker=worker, step=0, version=0, parameters="own"))
            two.computed(worker, 0)
            two.carry_out(StepReplica(worker=worker, step=0, version=1))
            two.stepped(worker, 0)
        host: Any = two.host
        own, other = (host.shelf.place(host.replicas.replica(worker)) for worker in (1, 0))
        before = descriptors()
        make(two, [ordered(CopyReplica(source=0, worker=1))])
        make(two, [hands(0)] * ("packed" not in source))
        if source == "lives":
            make(two, [told(COPIED)])
        else:
            two.leave(0)
        two.carry_out(Release(worker=1, step=1, version=1, parameters="own"))
        assert own != other
        assert host.shelf.place(host.replicas.replica(1)) == (other if source == "lives" else own)
        assert descriptors() == before
        assert ("copied for", 1) not in two.claims()

    @pytest.mark.parametrize("protocol", ["asp", "ad-psgd"])
    def test_what_is_packed_for_a_joiner_that_died_since_is_not_for_its_next_process(
        self, protocol: str, training: Makes
    ) -> None:
        """Nor does it count twice, as a worker packs for both once it waits for a release."""
        three = without_worker_1(training, protocol)
        before = descriptors()
        joining = [*COMES, joins(0, 2)] + [ordered(CopyReplica(source=0, worker=1))] * (protocol == "ad-psgd")
        make(three, joining)
        three.leave(1)
        make(three, joining)
        make(three, [hands(2, 0), hands(2), hands(0, 0)])
        assert three.crew.handed == []
        make(three, [hands(0), told(COPIED)])
        assert three.crew.handed == [(1, "worker 0's")]
        assert descriptors() == before

    @pytest.mark.parametrize("returns", [True, False])
    def test_a_joiner_that_is_to_begin_with_a_mean_which_is_being_written_waits_for_that_unless_it_dies(
        self,
        returns: bool,
    ) -> None:
        one = company(1, "ad-psgd")
        one.host.record(3, [0], "file", "mean")
        one.leave(0)
        make(one, alone_comes())
        one.host.begin_anew(0, 3, os.devnull)
        assert one.crew.handed == []
        if returns:
            one.leave(0)
            make(one, alone_comes())
        one.said_by_store(messages.store.MeanRecorded(3, "digest", 0.0))
        assert [worker for worker, _ in one.crew.handed] == [0] * (not returns)
        if returns:
            one.host.begin_anew(0, 3, os.devnull)
        ((_, told),) = [(worker, said) for worker, said in one.told if isinstance(said, messages.worker.TakeUp)]
        assert told.recorded
        assert ("what training began with",) not in one.claims()


class TestSeveral:
    """What differs where the workers are on another host than the store."""

    @pytest.mark.parametrize("hold", [False, True])
    def test_a_worker_that_has_left_sees_what_it_looks_at_once_that_is_there(self, hold: bool) -> None:
        """Its script waits for that, wherever it is as the run is stopped."""
        two = elsewhere(2)
        two.pushes(0, 0)
        two.apply(1, (0, 0))
        two.between.slow = True
        two.crew.told.clear()
        two.crew.hear(1, messages.worker.SnapshotWanted(hold=hold))
        two.host.left(1, died=False)
        assert two.told == []
        two.between.arrives()
        assert [(worker, type(said).__name__) for worker, said in two.told] == [(1, "SnapshotReady")]

    def test_a_long_message_of_a_worker_goes_to_the_head_as_items_do_and_a_short_one_as_it_is(self) -> None:
        two = elsewhere(2)
        two.between.slow = True
        long, short = (messages.worker.Remarked("x" * (LONG - less)) for less in (0, 100))
        two.crew.hear(1, short)
        assert two.reports.of(WorkerSaid) == [WorkerSaid(1, short)]
        two.crew.hear(1, long)
        assert len(two.reports.of(WorkerSaid)) == 1
        two.between.arrives()
        assert two.reports.of(WorkerSaid)[1:] == [WorkerSaid(1, long)]

    def test_updates_that_are_added_up_arrive_where_a_scenario_says_how_fast_groups_average(self) -> None:
        """Beside tables of hosts, `[network]` may have `within_nodes`. It paces no push."""
        two = elsewhere(2, "bsp", network=Network(within_nodes=1e9))
        for worker in range(2):
            two.carry_out(Release(worker=worker, step=0, version=0))
        for worker in range(2):
            two.computed(worker, 0)
            two.host.tell(GradientReady(worker=worker, step=0, version=0, samples=8, at=0.0))
            two.carry_out(StartPush(worker=worker, step=0))
        two.loop.hear(ADDER, messages.store.Summed(1, None))
        assert [(fact.worker, fact.sum) for fact in two.reports.of(UpdateArrived)] == [(0, 1), (1, 1)]

    def test_a_worker_of_another_host_forks_no_store(self) -> None:
        two = elsewhere(2)
        two.host.prepare(1)
        assert two.reports.of(ProcessLost) == [
            ProcessLost("no worker of the head's host has come to prepare(), so nothing can make versions there")
        ]
