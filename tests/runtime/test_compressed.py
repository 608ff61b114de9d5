"""Runs that encode what workers push."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.runs import Run, resume, run
from support.runs import ended as to_its_end
from support.scripts import script
from support.sound import same_bits, sound

pytestmark = pytest.mark.real_run

TRAINS = script("""
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.BatchNorm1d(50), nn.Linear(50, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
data = TensorDataset(torch.randn(200, 40), torch.randint(0, 2, (200,)))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in paceline.epochs(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""")
NO_BUFFERS = TRAINS.replace("nn.BatchNorm1d(50), ", "")
"""A store's versions have the buffers of one worker, and replicas those of their own."""
DIES_INSIDE = """
import os, signal
from paceline.training.averages import AreaAverages
whole, calls = AreaAverages.share, []

def share(*given, **keys):
    calls.append(None)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*given, **keys)

if paceline.worker() == 1:
    AreaAverages.share = share
"""
ONE_HOST = ("-n", "4", "--threads", "1")
TWO_HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")


def goes_on(begun: Run, *flags: str) -> Run:
    """The run, resumed to its end."""
    return to_its_end(resume(begun.folder, *flags))


@pytest.mark.parametrize(
    ("codec", "protocol", "share"),
    [
        ("bf16", "bsp", 0.52),
        ("int8", "diloco:every=3", 0.29),
        ("int8", "diloco:every=4,fragments=2", 0.15),
        ("topk:density=0.1", "bsp", 0.23),
        ("bf16", "all-reduce", 0.52),
        ("int8", "all-reduce", 0.29),
        ("topk:density=0.1", "all-reduce", 0.23),
        ("powersgd:rank=1", "all-reduce", 0.16),
    ],
)
def test_values_are_those_of_one_host_and_fewer_bytes_cross_links(
    codec: str, protocol: str, share: float, tmp_path: Path
) -> None:
    """Hosts add up updates that are not encoded, so those of as many workers are what is compared."""
    here, there = (
        run(TRAINS, "-p", protocol, "--compress", codec, *spread, tmp_path=tmp_path).completed()
        for spread in (ONE_HOST, TWO_HOSTS)
    )
    assert same_bits(here, there)
    assert there.summary["compress"] == codec
    ((of_one,),) = there.rows(
        "SELECT sum(bytes) / count(DISTINCT worker || ' ' || number) FROM fetches WHERE kind = 'update'"
    )
    values = 4 * (40 * 50 + 50 + 100 + 100 + 2)
    assert of_one < share * values + 1000, "and flags and buffers"
    sound(there)


@pytest.mark.parametrize(
    ("codec", "protocol"),
    [
        ("topk:density=0.1", "bsp"),
        ("topk:density=0.1", "diloco:every=4"),
        ("topk:density=0.1", "diloco:every=4,fragments=2,mix=0.5"),
        ("topk:density=0.1", "all-reduce"),
        ("powersgd:rank=1", "all-reduce"),
    ],
)
def test_a_run_that_goes_on_has_the_bits_of_one_in_one_piece(codec: str, protocol: str, tmp_path: Path) -> None:
    """What encoding has lost is in its snapshots, and what workers have of fragments that aren't exchanged yet."""
    flags = ("-p", protocol, "--compress", codec, "-n", "2", "--threads", "1", "--checkpoint", "3")
    whole = run(TRAINS, *flags, tmp_path=tmp_path).completed()
    part = run(TRAINS, *flags, "--max-steps", "20", tmp_path=tmp_path)
    resumed = goes_on(part).completed()
    assert resumed.summary["steps"] == whole.summary["steps"] > 20
    assert same_bits(whole, resumed)
    sound(resumed)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_all_reduce_steps_with_what_a_store_would_decode_even_where_one_worker_averages_nothing(
    workers: str, tmp_path: Path
) -> None:
    one, other = (
        run(NO_BUFFERS, "-p", protocol, "--compress", "topk:density=0.1", "-n", workers, tmp_path=tmp_path).completed()
        for protocol in ("all-reduce", "bsp")
    )
    assert same_bits(one, other)


@pytest.mark.parametrize("spread", [ONE_HOST, TWO_HOSTS])
def test_gradients_of_a_group_whose_member_dies_are_averaged_again_as_they_were_encoded(
    spread: tuple[str, ...], tmp_path: Path
) -> None:
    """So what encoding has lost of them is right, and a replay comes to the same bits."""
    text = TRAINS.replace("import paceline\n", f"import paceline\n{DIES_INSIDE}")
    ended = run(text, "-p", "all-reduce", "--compress", "topk:density=0.1", *spread, tmp_path=tmp_path).completed()
    assert ended.rows("SELECT count(*) FROM facts WHERE kind = 'ReduceFailed'") == [(1,)]
    sound(ended)


def test_an_update_that_is_dropped_while_its_worker_goes_on_is_as_if_it_had_not_been_pushed(tmp_path: Path) -> None:
    """A replay drops it, too, so its bits say that the worker was told of that at the same step."""
    flags = ("-p", "hsp:idle=always,stale=discard", "--compress", "topk:density=0.1", *TWO_HOSTS)
    ended = run(TRAINS, *flags, tmp_path=tmp_path).completed()
    assert ended.rows("SELECT count(*) FROM orders WHERE kind = 'DropUpdate'") > [(0,)]
    sound(ended)


def test_a_run_goes_on_with_another_codec_but_not_without_one(tmp_path: Path) -> None:
    """What encoding has lost would be lost for good."""
    began = run(TRAINS, "--compress", "topk", "-n", "1", "--threads", "1", "--max-steps", "3", tmp_path=tmp_path)
    goes_on(began, "--compress", "none").refused("what --compress topk has lost so far is to go into later pushes")
    resumed = goes_on(began, "--compress", "bf16").completed()
    assert resumed.summary["compress"] == "bf16"
    sound(resumed)


def test_a_codec_may_follow_one_that_keeps_more_and_one_that_keeps_less(tmp_path: Path) -> None:
    flags = ("-p", "all-reduce", "--compress", "int8", "-n", "1", "--threads", "1", "--max-steps", "3")
    at = run(TRAINS, *flags, tmp_path=tmp_path)
    for step, codec in enumerate(("powersgd:rank=1", "powersgd:rank=3", "topk")):
        at = goes_on(at, "--compress", codec, "--max-steps", str(6 + 3 * step)).completed()
    sound(at)
