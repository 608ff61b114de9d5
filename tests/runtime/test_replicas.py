"""Where every worker owns a replica: workers that die in the middle of it, other ends, and what replicas begin with."""

from __future__ import annotations

import pytest

from paceline.core.facts import ReduceFailed
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.scripts import ENDLESS, that_draws, training
from support.sound import sound
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


def test_a_replica_that_is_not_finite_ends_the_run_with_4(launch: Launch) -> None:
    spoils = "if me == 1 and step == 3: model.bias.register_hook(lambda gradient: gradient * float('nan'))"
    run = launch.run(training(spoils, **ENDLESS), "-n", "3", "-p", "ripples", "--tee", "none")
    assert run.code == 4, run.err
    assert run.summary["outcome"] == "diverged"
    assert run.summary["error"] == 'the parameter "bias" is NaN or infinite after step 3 of worker 1'


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
