"""Where every worker owns a replica: workers that die in the middle of it, other ends, and what replicas begin with."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from paceline.core.facts import ReduceFailed
from paceline.protocols import registry
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import that_draws, training
from support.sound import same_bits, sound
from support.suites import each

DIES_INSIDE = """
from paceline.store import chunks as parts
from paceline.training.averages import AreaAverages

parts.CHUNK = 100
whole, calls = AreaAverages.share, []

def share(self, sources, target, weights, part, parts, **keys):
    calls.append(target)
    if len(calls) < int(sys.argv[1]):
        return whole(self, sources, target, weights, part, parts, **keys)
    whole(self, sources, target, weights, 2 * part, 2 * parts, **keys)
    os.kill(os.getpid(), signal.SIGKILL)

if paceline.worker() == 1:
    AreaAverages.share = share
"""
"""Half of worker 1's share of so manieth average is made when it dies."""
HURT = "[[event]]\nworker = 3\nat_step = 7\nkill = true\n"
SYSTEMS = {
    "all-reduce": 3,
    "ad-psgd": 4,
    "ad-psgd:topology=bipartite-complete": 2,
    "ripples:schedule=random": 5,
    "ripples:schedule=static": 4,
    "ripples": 6,
}
"""With the number of the average inside which worker 1 dies."""
MOMENTS = [(name, at) for name, usual in SYSTEMS.items() for at in sorted({1, 2, 7, 10, usual})]
SHORT = [(name, SYSTEMS[name]) for name in ("all-reduce", "ad-psgd", "ripples")]


@pytest.mark.parametrize(("protocol", "inside"), each(MOMENTS, default=SHORT))
def test_who_leaves_or_dies_even_inside_an_average_holds_up_nobody_and_no_sum_is_left_half_made(
    protocol: str, inside: int, launch: Launch
) -> None:
    """Of five workers 1 and 3 die, the first inside an average, and 2 leaves early. Halves would not be replayed."""
    (launch.tmp_path / "hurt.toml").write_text(HURT)
    script = that_draws("if paceline.worker() == 2 and step == 4: sys.exit()").replace("16", "64")  # of several parts
    script = script.replace("import paceline\n", f"import sys\nimport paceline\n{DIES_INSIDE}", 1)
    flags = ("-n", "5", "-p", protocol, "--scenario", str(launch.tmp_path / "hurt.toml"), "--record", "8")
    run = launch.run(script, *flags, "--threads", "1", "--tee", "none", args=(str(inside),)).completed()
    reasons = [row["left"]["reason"] for row in run.summary["per_worker"]]
    assert reasons == ["finished", "died", "finished", "died", "finished"]
    facts = [fact for fact, _ in read_facts(run.folder / "ledger.sqlite")]
    assert any(isinstance(fact, ReduceFailed) and 1 in fact.lost for fact in facts), "inside an average"
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (run.summary["samples"], run.summary["samples_missed"]) == (2 * 240, 0)
    sound(run)


@pytest.mark.parametrize("hosts", each([1, 3], long=[1]))
def test_all_replicas_are_stepped_with_the_rate_of_the_round_s_lowest_worker(hosts: int, launch: Launch) -> None:
    """Rates that differ come to the same bits as if all workers had worker 0's."""
    finals = set()
    for rate in ("me", "0"):
        script = training(f"optimizer.param_groups[0]['lr'] = 0.01 / (1 + {rate} * step)")
        flags = ("-n", "3") if hosts == 1 else ("-n", "1", "--emulate-hosts", "3")
        run = launch.run(script, *flags, "-p", "all-reduce", "--threads", "1").completed()
        assert run.rows("SELECT max(distance) FROM consensus") == [(0.0,)]
        finals.add(run.summary["final_parameters_sha256"])
    assert len(finals) == 1


# --- on several hosts


IN_GROUPS = sorted(name for name, spec in registry().items() if spec.groups)
AD_PSGD = each(IN_GROUPS, long=("all-reduce", "ripples"))
"""Where its groups, which are as AD-PSGD's, are tried in the longer suite only."""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
SAMPLES = 2 * 240


def fetched(run: Run) -> set[tuple[str, str, str]]:
    """(kind, host, source) of all fetches of averages."""
    return set(run.rows("SELECT DISTINCT kind, host, source FROM fetches WHERE kind IN ('partial', 'mean')"))


PRINTS = 'paceline.finish(); print("final", sum(p.double().sum().item() for p in model.parameters()), flush=True)'


@pytest.mark.parametrize("protocol", each(IN_GROUPS, long=("ad-psgd",)))  # tests/journeys has it
def test_replicas_on_several_hosts_are_averaged_and_a_replay_on_one_ends_on_the_same_bits(
    protocol: str, launch: Launch
) -> None:
    run = launch.run(that_draws(after=PRINTS), *HOSTS, "-p", protocol).completed()
    assert run.err == ""
    assert run.summary["samples"] == SAMPLES
    assert {kind for kind, _, _ in fetched(run)} == {"partial", "mean"}
    ends = {line for worker in range(4) for line in run.log(worker).splitlines() if "final" in line}
    assert len(ends) == 1, "all take the same final parameters, wherever they are"
    sound(run)


@pytest.mark.parametrize("protocol", each(["ad-psgd", "ripples"], long=("ripples",)))
def test_a_replica_elsewhere_begins_with_the_buffers_that_all_begin_with(protocol: str, launch: Launch) -> None:
    """It is averaged before its worker has made a step, and so has any."""
    late = "if paceline.worker() == 3 and step == 0: time.sleep(0.5)"
    run = launch.run(that_draws(late), *HOSTS, "-p", protocol, "--record", "4").completed()
    whole_replica = run.rows("SELECT DISTINCT bytes FROM fetches WHERE kind = 'replica'")
    assert run.rows("SELECT DISTINCT bytes FROM fetches WHERE kind = 'version'") == whole_replica
    again = replayed(run.folder).completed()
    for mean in (run.folder / "versions").glob("0*.safetensors"):
        here, there = load_file(mean), load_file(again.folder / "versions" / mean.name)
        assert all(torch.equal(here[name], there[name]) for name in here), mean.name


def wide() -> str:
    """The script with a model that is cut into pieces, which does not normalize over batches."""
    text = that_draws().replace("16", "100_000")
    return text.replace("nn.BatchNorm1d(100_000), ", "")


def test_every_host_makes_a_slice_where_the_model_has_enough_pieces_as_rounds_with_a_store_do(launch: Launch) -> None:
    """All-Reduce and BSP add up what a host's workers have first, and then what the hosts have: to the same bits."""
    run = launch.run(wide(), *HOSTS, "-p", "all-reduce", "--max-steps", "16").completed()
    both = [("node-0", "node-1"), ("node-1", "node-0")]
    assert fetched(run) == {(kind, *pair) for kind in ("partial", "mean") for pair in both}
    sound(run)
    assert same_bits(run, launch.run(wide(), *HOSTS, "-p", "bsp", "--max-steps", "16").completed())


@pytest.mark.parametrize("protocol", AD_PSGD)
def test_what_scripts_change_before_their_first_step_is_what_replicas_on_all_hosts_begin_with(
    protocol: str, launch: Launch
) -> None:
    fills = "torch.nn.init.constant_(model[1].weight, 0.25)"
    run = launch.run(that_draws(before=fills), *HOSTS, "-p", protocol).completed()
    assert run.summary["samples"] == SAMPLES
    sound(run)
