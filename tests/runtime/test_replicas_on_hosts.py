"""Runs on several hosts in which each worker owns a replica: All-Reduce, AD-PSGD and Ripples."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import that_draws
from support.sound import same_bits, sound
from support.suites import each

IN_GROUPS = sorted(name for name, spec in registry().items() if spec.in_groups)
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
