"""What workers bring to the start fits into memory, and is the same on all hosts; or one line says what is not so."""

import re
from dataclasses import replace

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.ipc import messages
from paceline.job.compatibility import (
    dealing,
    difference,
    lack_of_memory,
    lack_of_work,
    unequal_hosts,
    unfit,
    unpromised,
    work,
)
from paceline.protocols import registry
from support.run_state import OFFER, SETTINGS

STATE = 1_000_000
HEAVY = msgspec.structs.replace(OFFER, state_bytes=STATE)


def needed(protocol: str, *, here: int = 3, keeps: bool = False) -> int:
    """How many bytes three workers need, as the message says."""
    line = lack_of_memory(HEAVY, choose(protocol, registry()), 3, 0, here=here, keeps=keeps)
    assert ("a copy of each state for snapshots" in line) == keeps
    found = re.search(r" needs ([0-9,]+) bytes of memory ", line)
    assert found
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("protocol", "states"), [("bsp", 1), ("asp", 1), ("ps-plus", 3), ("all-reduce", 3)])
def test_a_run_that_takes_snapshots_needs_memory_for_a_copy_of_each_state(protocol: str, states: int) -> None:
    with_snapshots, without = (needed(protocol, keeps=keeps) for keeps in (True, False))
    assert with_snapshots - without == states * STATE
    assert lack_of_memory(HEAVY, choose(protocol, registry()), 3, with_snapshots, here=3, keeps=True) == ""
    assert lack_of_memory(HEAVY, choose(protocol, registry()), 3, with_snapshots - 1, here=3, keeps=True) != ""


@pytest.mark.parametrize(("protocol", "own"), [("asp", 0), ("ps-plus", OFFER.slot_bytes + STATE)])
def test_a_worker_on_another_machine_reads_its_version_there_and_keeps_what_is_its_own(protocol: str, own: int) -> None:
    """Only its update comes here."""
    all_here, one_here = (needed(protocol, here=here) for here in (3, 1))
    assert all_here - one_here == 2 * (OFFER.slot_bytes + own)
    line = lack_of_memory(HEAVY, choose(protocol, registry()), 3, 0, here=1, keeps=False)
    assert line.startswith("training this model with 1 of 3 workers on this machine needs ")


def test_workers_that_prepare_different_numbers_of_plateaus_do_not_fit_together() -> None:
    one = msgspec.structs.replace(OFFER, plateaus=1)
    assert difference(one, one) == ""
    assert difference(one, OFFER).startswith("it gives prepare() 0 ReduceLROnPlateau, the other 1; every worker must")


def test_an_outer_optimizer_s_momentum_takes_a_version_s_memory_and_what_encodes_four_a_worker() -> None:
    without = needed("diloco:outer_momentum=0,outer=sgd")
    assert needed("diloco") - without == OFFER.slot_bytes
    assert needed("async-diloco") - without == 2 * OFFER.slot_bytes
    assert (
        needed("diloco", keeps=True) - needed("diloco:outer_momentum=0,outer=sgd", keeps=True) == 2 * OFFER.slot_bytes
    )
    encodes = msgspec.structs.replace(HEAVY, encoded_cuts=[0, 1])
    line = lack_of_memory(
        encodes, choose("bsp", registry()), 3, needed("bsp") + 12 * OFFER.slot_bytes - 1, here=3, keeps=False
    )
    assert "what each worker encodes" in line


def test_a_worker_that_exchanges_fragments_has_the_newest_version_in_memory_of_its_own() -> None:
    assert needed("diloco:fragments=2") - needed("diloco") == 3 * OFFER.slot_bytes


@pytest.mark.parametrize("protocol", ["diloco:every=8,fragments=4", "sync-switch:then=diloco:every=8,fragments=4"])
def test_there_are_no_more_fragments_than_parameters(protocol: str) -> None:
    settings = replace(SETTINGS, choice=choose(protocol, registry()))
    three = msgspec.structs.replace(OFFER, starts=[0, 64, 128])
    assert unfit(three, settings) == "diloco: fragments is 4, and the model has 3 parameters; use at most 3"
    assert unfit(msgspec.structs.replace(OFFER, starts=[0, 64, 128, 192]), settings) == ""


HOSTS = {0: "a", 1: "a", 2: "b", 3: "c"}


def brought(data: int | None = 96, **code: str) -> messages.worker.Offered:
    """What a worker brings that has imported these modules."""
    return msgspec.structs.replace(OFFER, data=data, code={f"{name}.py": digest for name, digest in code.items()})


SAME = brought(model="1")
UNEQUAL = {
    "": [
        [SAME] * 4,
        [brought(), brought(), brought(plots="1"), brought(model="2")],
        [SAME, brought(model="2"), brought(), brought()],  # those of one host may differ
        [brought(), brought(data=95), brought(), brought()],
        [brought(data=None), brought(), brought(data=None), brought()],
    ],
    "host b: model.py differs from the head's; copy the same files": [[SAME, SAME, brought(model="2"), SAME]],
    "host c: model.py differs from the head's; copy the same files": [[brought(), SAME, brought(), brought(model="2")]],
    "host c: model.py differs from that of host b; copy": [[brought(), brought(), SAME, brought(model="2")]],
    "host b: its data has 1,095 samples, and the head's 96; copy": [[SAME, SAME, brought(data=1095), SAME]],
}
"""By what is said: what four workers bring."""


@pytest.mark.parametrize("line", UNEQUAL)
def test_files_and_data_that_two_hosts_both_have_are_the_same(line: str) -> None:
    for offers in UNEQUAL[line]:
        said = unequal_hosts(dict(enumerate(offers)), HOSTS)
        assert said.startswith(line)
        assert bool(said) == bool(line)


def on(device: str, *, deterministic: bool = True) -> messages.worker.Offered:
    return msgspec.structs.replace(OFFER, device=device, deterministic=deterministic)


@pytest.mark.parametrize(
    ("offers", "before", "lines"),
    [
        ([on(""), on("")], {}, []),
        ([on("H200"), on("")], {0: "H200", 1: ""}, []),
        (
            [on(""), on("H200", deterministic=False)],
            {0: "", 1: "H200"},
            [
                "worker 1 computes on a GPU without torch.use_deterministic_algorithms(True): the replay can't promise "
                "the bits"
            ],
        ),
        (
            [on("H200"), on("H200"), on("")],
            {0: "A100", 1: "A100", 2: "A100"},
            [
                "workers 0, 1 computed on A100 (here H200): the replay can't promise their bits",
                "worker 2 computed on A100 (here the CPU): the replay can't promise their bits",
            ],
        ),
        ([on("H200")], {}, ["worker 0 computed on the CPU (here H200): the replay can't promise their bits"]),
    ],
)
def test_a_replay_says_which_workers_bits_it_can_t_promise(
    offers: list[messages.worker.Offered], before: dict[int, str], lines: list[str]
) -> None:
    assert sorted(unpromised(dict(enumerate(offers)), before)) == sorted(lines)


def test_a_protocol_that_switches_at_a_share_of_the_work_says_so_where_nobody_knows_how_much_that_is() -> None:
    offer = msgspec.structs.replace(OFFER, loads=False, epoch_samples=None)
    switches = replace(SETTINGS, choice=choose("sync-switch", registry()))
    assert lack_of_work(offer, switches).startswith("sync-switch needs to know how much work there is, and the script")
    for known in (replace(switches, max_steps=8), replace(SETTINGS, choice=choose("bsp", registry()))):
        assert lack_of_work(offer, known) == ""


@pytest.mark.parametrize(("passes", "samples"), [(1, 96), (2, 192)])
def test_the_work_is_all_passes_of_all_epochs(passes: int, samples: int) -> None:
    offer = msgspec.structs.replace(OFFER, loads=True, epoch_samples=32, epochs=3, passes=passes)
    assert work(offer, SETTINGS) == samples


@pytest.mark.parametrize(
    ("protocol", "dealt"),
    [
        ("sync-switch", "rounds"),
        ("sync-switch:switch_at=0", "queue"),
        ("sync-switch:switch_at=0,first=asp,then=bsp", "rounds"),
    ],
)
def test_batches_are_dealt_as_the_part_of_a_protocol_wants_it_that_decides_at_first(protocol: str, dealt: str) -> None:
    """Dealt by rounds, a straggler would hold all others up under `asp` as under `bsp`."""
    assert dealing(OFFER, replace(SETTINGS, choice=choose(protocol, registry()))) == dealt
