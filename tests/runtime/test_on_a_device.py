"""Runs whose workers have their models on a device, over which copies come late and unordered unless they are guarded.

See `support.fake_device`. On a real one the tests are in tests/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from paceline.protocols import registry
from support.fake_device import DIES as DIES_IN_A_COPY
from support.replays import broken_replay
from support.runs import Run, longer, run, side_by_side
from support.scripts import script, that_draws
from support.sound import right
from support.suites import each

pytestmark = pytest.mark.real_run

ON_DEVICE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.fake_device import install
install({{seed}})
"""
SCRIPT = that_draws()
DIES = "if paceline.worker() == 1 and step == 4: os.kill(os.getpid(), signal.SIGKILL)"
THREE = ("-n", "3", "--threads", "1")

SWITCHES = ("sync-switch:switch_at=0.5,first=bsp,then=ad-psgd", "sync-switch:switch_at=0.5,first=all-reduce,then=asp")
SEVERAL = "balanced:batches=7,every=2"
"""Steps of several batches."""
PROTOCOLS = sorted([*registry(), *SWITCHES, SEVERAL])
LONG = ("ad-psgd", "asp", "balanced", "bsp", "dssp", "hsp", "ripples", "ssp", "sync-switch", SWITCHES[1])
"""Protocols that hold and push what another one does in the shorter tests."""
Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of every protocol a run in memory in which one worker dies. Under All-Reduce, gradients are clipped."""
    folder = tmp_path_factory.mktemp("in_memory")

    def call(protocol: str) -> Callable[[], Run]:
        script = that_draws(DIES)
        if protocol == "all-reduce":
            script = script.replace("epochs=2,", "epochs=2, clip_grad_norm=0.5,")
        return lambda: run(script, *THREE, "-p", protocol, tmp_path=folder).completed()

    calls = {protocol: call(protocol) for protocol in PROTOCOLS if protocol not in LONG or longer(request)}
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("protocol", each(PROTOCOLS, long=LONG))
def test_a_run_in_memory_is_made_again_on_a_device_to_the_same_bits(protocol: str, runs: Runs) -> None:
    assert broken_replay(runs[protocol].result(), first=ON_DEVICE.format(seed=7)) == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_encoded_on_a_device_is_averaged_to_the_bits_of_a_run_in_memory(workers: str, tmp_path: Path) -> None:
    flags = ("-n", workers, "--threads", "1", "-p", "all-reduce", "--compress", "powersgd:rank=1")
    done = run(that_draws(), *flags, tmp_path=tmp_path).completed()
    assert broken_replay(done, first=ON_DEVICE.format(seed=7)) == []


IN_A_COPY = [
    (way, protocol) for way in ("take", "bring_bytes") for protocol in ("bsp", "all-reduce", "ps-plus", "ripples")
]


@pytest.mark.parametrize(("way", "protocol"), each(IN_A_COPY, default={("bring_bytes", "all-reduce")}))
def test_a_death_in_the_middle_of_a_copy_costs_that_worker_and_no_bits(way: str, protocol: str, tmp_path: Path) -> None:
    first = ON_DEVICE.format(seed=3) + DIES_IN_A_COPY.format(way=way, copies=4)
    flags = (*THREE, "-p", protocol, "--shards", "static")  # so that each has steps to make
    done = run(SCRIPT, *flags, tmp_path=tmp_path, first=first).completed()
    assert done.summary["per_worker"][1]["left"]["reason"] == "died"
    right(done)
    assert broken_replay(done) == []


def test_a_version_comes_to_a_device_as_it_is_made(tmp_path: Path) -> None:
    """This device takes as many milliseconds as it makes copies: one for a version that comes as a whole."""
    groups = "[{'params': list(model[:2].parameters())}, {'params': list(model[2:].parameters())}]"
    script = SCRIPT.replace("SGD(model.parameters()", f"SGD({groups}")
    done = run(script, "-n", "2", "-p", "bsp", tmp_path=tmp_path, first=ON_DEVICE.format(seed=5)).completed()
    times = done.rows("SELECT to_device, from_device FROM step_times WHERE step > 1")
    assert len(times) > 20
    assert all(to >= 0.002 and back > 0 for to, back in times)


ELSEWHERE = script("""
torch.manual_seed(3)
xs, ys = torch.randn(4, 8, 6), torch.randn(4, 8, 3)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
model.empty, model.unused = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.zeros(4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
torch.set_default_device("meta")
model, optimizer = paceline.prepare(model, optimizer)
for x, y in zip(xs, ys):
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert model.state_dict()["unused"].is_cpu
    optimizer.state_dict()
paceline.finish()
""")


@pytest.mark.parametrize(
    "flags", [("bsp",), ("all-reduce",), ("ps-plus",), ("all-reduce", "--compress", "powersgd:rank=1")], ids=" ".join
)
def test_a_script_may_have_its_new_tensors_made_where_the_store_can_make_none(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    run(ELSEWHERE, "-n", "2", "-p", *flags, tmp_path=tmp_path).completed()
