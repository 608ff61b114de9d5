"""Rounds of own steps in real runs: what becomes of a round that its worker doesn't end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.runs import ended as to_its_end
from support.runs import resume, run
from support.scripts import script
from support.sound import same_bits, sound

pytestmark = pytest.mark.real_run

STOPS = script("""
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for number, (x, y) in enumerate(loader, 1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if number == 6:
        break
if sys.argv[1] == "finishes":
    paceline.finish()
""")

GOES_ON = script("""
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
data = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
loader = DataLoader(data, batch_size=8)
model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler)
for epoch in range(12):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if sys.argv[1:] == ["skips"] and number == 5:
            continue
        optimizer.step()
        scheduler.step()
        if sys.argv[1:] == ["stops"] and paceline.worker() == 0 and number == 6:
            paceline.stop("enough")
""")


@pytest.mark.parametrize("how", ["ends", "finishes"])
@pytest.mark.parametrize("hosts", ["one host", "two hosts"])
def test_a_script_that_ends_in_the_middle_of_a_round_has_its_own_steps_in_the_last_version(
    how: str, hosts: str, tmp_path: Path
) -> None:
    """Though it says nothing of the step that it was released for. With 6 steps each and rounds of 4, 2 are left."""
    spread = ("--emulate-hosts", "2", "-n", "1") if hosts == "two hosts" else ("-n", "2")
    flags = ("-p", "local-sgd:every=4", *spread, "--threads", "1", "--epochs", "2")
    ended = run(STOPS, *flags, args=[how], tmp_path=tmp_path).completed()
    assert (ended.summary["steps"], ended.summary["versions"]) == (12, 2)
    sound(ended)


DIES = """
[cluster]
compute = "20ms"

[[event]]
worker = 1
at_step = 6
kill = true
rejoin_after = "0.1s"
"""


@pytest.mark.parametrize(
    "protocol",
    ["diloco:every=4", "diloco:every=8,fragments=2", "diloco:every=4,overlap=2", "async-diloco:every=4"],
)
def test_a_worker_that_comes_back_takes_part_from_the_next_round_on(protocol: str, tmp_path: Path) -> None:
    """What it had done in its open round is used again by others."""
    (tmp_path / "dies.toml").write_text(DIES)
    flags = ("-p", protocol, "-n", "2", "--threads", "1", "--scenario", str(tmp_path / "dies.toml"))
    ended = run(GOES_ON, *flags, tmp_path=tmp_path).completed()
    assert ended.summary["samples"] == 12 * 200
    assert ended.summary["per_worker"][1]["steps"] > 4, "the first round's, and those since it is back"
    sound(ended)


LAYERS = script("""
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(600, 600), nn.Tanh()) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(2 * int(sys.argv[1]), 600))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=2))
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
""")


@pytest.mark.parametrize(("shards", "overlap"), [("head", 0), ("all", 1)])
def test_only_fragments_cross_links_and_the_bits_are_those_of_one_host(
    shards: str, overlap: int, tmp_path: Path
) -> None:
    flags = ("-p", f"diloco:every=4,fragments=2,mix=0.5,overlap={overlap}", "--threads", "1")
    here = run(LAYERS, *flags, "-n", "2", args=["24"], tmp_path=tmp_path).completed()
    hosts = ("--emulate-hosts", "2", "-n", "1", "--shards-on", shards)
    there = run(LAYERS, *flags, *hosts, args=["24"], tmp_path=tmp_path).completed()
    assert same_bits(here, there)
    size = 4 * 4 * (600 * 600 + 600)
    items = "kind = 'update' OR kind = 'version' AND number > 0"
    came = there.rows(f"SELECT sum(bytes) FROM fetches WHERE {items} GROUP BY kind, worker, number, host")
    most = max(of_one for (of_one,) in came)
    assert size / 2 <= most * (2 if shards == "all" else 1) < size / 2 + 5000, "and padding and flags"
    sound(there)


@pytest.mark.parametrize("shards", ["head", "all"])
def test_data_that_ends_in_the_middle_of_an_overlap_is_pushed_once_and_the_bits_are_those_of_one_host(
    shards: str, tmp_path: Path
) -> None:
    """Each worker makes 5 steps: 1, 2 meanwhile, and 2 meanwhile of which only the first one has data."""
    flags = ("-p", "diloco:every=6,fragments=2,overlap=2", "--threads", "1")
    here = run(LAYERS, *flags, "-n", "2", args=["10"], tmp_path=tmp_path).completed()
    hosts = ("--emulate-hosts", "2", "-n", "1", "--shards-on", shards)
    there = run(LAYERS, *flags, *hosts, args=["10"], tmp_path=tmp_path).completed()
    assert same_bits(here, there)
    sound(there)


@pytest.mark.parametrize("protocol", ["diloco:every=6,fragments=2,overlap=2", "async-diloco:every=5"])
def test_a_stopped_run_goes_on_and_uses_every_sample_once(protocol: str, tmp_path: Path) -> None:
    """Steps that were in no version as it was stopped are made again."""
    flags = ("-p", protocol, "-n", "2", "--threads", "1", "--checkpoint", "3")
    stopped = run(GOES_ON, *flags, "--max-steps", "60", tmp_path=tmp_path)
    assert stopped.summary["samples"] < 12 * 200
    goes_on = to_its_end(resume(stopped.folder, "--max-steps", "1000")).completed()
    assert goes_on.summary["samples"] == 12 * 200
    sound(goes_on)


@pytest.mark.parametrize(
    "protocol", ["async-diloco:every=4,delay=3", "sync-switch:first=diloco:every=4,then=async-diloco:every=4"]
)
def test_differences_that_are_applied_one_by_one_are_right_where_each_host_makes_a_range(
    protocol: str, tmp_path: Path
) -> None:
    """With a codec, whose residual follows each worker's own updates."""
    hosts = ("--emulate-hosts", "2", "-n", "1", "--shards-on", "all", "--threads", "1")
    ended = run(
        LAYERS, "-p", protocol, *hosts, "--compress", "topk:density=0.1", args=["24"], tmp_path=tmp_path
    ).completed()
    assert ended.summary["samples"] == 48
    sound(ended)


def test_own_steps_of_a_round_wait_for_no_word_of_the_run(tmp_path: Path) -> None:
    """Nor do their batches. Each worker has 150 of these, and skips one in each of 12 epochs: 28 rounds of 5 steps."""
    flags = ("-p", "local-sgd:every=5", "--emulate-hosts", "2", "-n", "1", "--threads", "1")
    ended = run(GOES_ON, *flags, args=["skips"], tmp_path=tmp_path).completed()
    assert (ended.summary["steps"], ended.summary["versions"]) == (2 * 138, 28)
    releases = "SELECT worker, count(*) FROM orders WHERE kind = 'Release' GROUP BY worker"
    assert dict(ended.rows(releases)) == {0: 28, 1: 28}
    answers = dict(ended.rows("SELECT worker, count(*) FROM leases WHERE during >= 0 GROUP BY worker"))
    assert max(answers.values()) <= 28 + 3 * 12, "one for each round, and some as an epoch ends or a batch is skipped"
    sound(ended)


def test_a_run_that_is_stopped_in_a_long_round_keeps_what_was_done_of_it(tmp_path: Path) -> None:
    """The round ends before its last step: the last version and the last snapshot have all steps that were made."""
    (tmp_path / "slow.toml").write_text('[cluster]\ncompute = "30ms"\n')
    flags = ("-p", "local-sgd:every=10000", "-n", "2", "--threads", "1", "--scenario", str(tmp_path / "slow.toml"))
    ended = run(GOES_ON, *flags, args=["stops"], tmp_path=tmp_path).completed()
    ready = ended.rows("SELECT count(*) FROM facts WHERE kind = 'GradientReady'")
    assert [(ended.summary["steps"],)] == ready
    assert ended.summary["versions"] == 1
    revoked = ended.rows("SELECT count(*) FROM facts WHERE json_extract(body, '$.revoked')")
    assert revoked == [(2,)]
    sound(ended)
