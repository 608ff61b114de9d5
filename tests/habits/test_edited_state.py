"""Scripts that look at and edit `optimizer.state`: it shows the newest version's, and edits count in every worker."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.replays import broken_replay
from support.scripts import script
from support.sound import sound
from support.suites import each

SCRIPT = script("""
import collections

torch.set_num_threads(1)
STEPS = 9

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)

def train(model, optimizer):
    seen = []
    for step in range(STEPS):
        if step in (3, 6):
            seen.append(len(optimizer.state))
            seen.append(optimizer.state[model[0].weight]["exp_avg"].clone())
            exec(sys.argv[1])
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        (model(x) - x[:, :2].sin()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            kept = optimizer.state_dict()
    return seen, [parameter.detach().clone() for parameter in model.parameters()]

alone_seen, alone = train(*build())
seen, trained = train(*paceline.prepare(*build()))
assert seen[::2] == alone_seen[::2], (seen, alone_seen)
apart = [(one - other).abs().max().item() for one, other in zip([*alone_seen[1::2], *alone], [*seen[1::2], *trained])]
print("apart by", max(apart))
""")
EDITS = {
    "cleared": "optimizer.state.clear()",
    "assigned": "optimizer.state = collections.defaultdict(dict)",
    "zeroed": "[state['exp_avg'].zero_() for state in optimizer.state.values()]",
    "counted anew": "[state.update(step=torch.tensor(0.0)) for state in optimizer.state.values()]",
    "removed": "optimizer.state.pop(model[2].bias)\ndel optimizer.state[model[0].weight]",
    "loaded back": "optimizer.load_state_dict(optimizer.state_dict())",
    "scaled": "[state['exp_avg'].mul_(0.5) for state in optimizer.state.values()]",
    "loaded": "optimizer.load_state_dict(kept)",
}
SAY = list(EDITS)[:6]
STORES, OWN = ("bsp", "asp"), ("all-reduce", "ad-psgd", "ps-plus")


@pytest.mark.parametrize(
    ("protocol", "edit"),
    each(
        [(protocol, edit) for protocol in STORES + OWN for edit in SAY] + [(one, "scaled") for one in OWN],
        default=[("bsp", "removed"), ("all-reduce", "assigned")],
    ),
)
def test_a_state_that_the_script_edits_trains_on_as_alone(protocol: str, edit: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-n", "1", "-p", protocol, args=(EDITS[edit],)).completed()
    assert float(ended.out.split("apart by")[1].split()[0]) <= (1e-5 if protocol == "ps-plus" else 0.0)


@pytest.mark.parametrize("edit", each(SAY, default=["zeroed"]))
def test_two_workers_edits_are_one_and_the_replay_ends_on_the_same_bits(edit: str, launch: Launch) -> None:
    """Both compute the same gradients, whose mean is one worker's to the bit."""
    ended = launch.run(SCRIPT, "-n", "2", "-p", "bsp", args=(EDITS[edit],)).completed()
    assert [float(said.split()[0]) for said in ended.out.split("apart by")[1:]] == [0.0]
    sound(ended)


@pytest.mark.long
@pytest.mark.parametrize("edit", SAY)
def test_hosts_that_make_ranges_of_a_version_edit_their_own(edit: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "--emulate-hosts", "2", "-n", "1", "-p", "bsp", args=(EDITS[edit],)).completed()
    assert [float(said.split()[0]) for said in ended.out.split("apart by")[1:]] == [0.0]


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["asp", "ssp", "hsp", "ps-plus", "ad-psgd", "ripples"])
def test_under_every_protocol_a_run_with_edits_is_replayed_to_the_same_bits(protocol: str, launch: Launch) -> None:
    script = SCRIPT.replace('print("apart by", max(apart))', "").replace("assert seen", "# ")
    assert not broken_replay(launch.run(script, "-n", "3", "-p", protocol, args=(EDITS["cleared"],)).completed())


@pytest.mark.parametrize(
    ("protocol", "edit"),
    each([(protocol, edit) for protocol in STORES for edit in ("scaled", "loaded")], default=[("bsp", "loaded")]),
)
def test_what_other_workers_can_t_follow_is_refused_in_one_line(protocol: str, edit: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-n", "1", "-p", protocol, args=(EDITS[edit],))
    ended.refused("changed the optimizer's state after the first step")
