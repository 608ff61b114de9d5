"""Ctrl-C reaches a script as the KeyboardInterrupt that it may be written for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from paceline.cli.main import main
from paceline.protocols import registry
from support.events import TELL
from support.launch import Launch
from support.scripts import script
from support.suites import each

EXITS_EARLY = script("""
{tell}
torch.manual_seed(0)
data = TensorDataset(torch.randn(4000, 4), torch.randn(4000, 2))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
try:
    step = 0
    while True:
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == 3:
                tell("trains", paceline.worker())
except KeyboardInterrupt:
    print("exiting from training early")
paceline.finish()
test = DataLoader(data, batch_size=1000)
print("tested", sum(len(x) for x, _ in test))
torch.save(model.state_dict(), f"{folder}/exported-{{paceline.worker()}}.pt")
""")
EVERYDAY = {"bsp", "asp", "ripples"}
ALL = each(registry(), default=EVERYDAY)


def training(launch: Launch) -> str:
    return EXITS_EARLY.format(tell=TELL, folder=launch.tmp_path)


@pytest.mark.parametrize("protocol", ALL)
def test_a_script_that_catches_ctrl_c_tests_and_exports_what_it_has(
    protocol: str, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-p", protocol, "--saves", "all", "--max-steps", "1000000")
    run = launch.signalled(signal.SIGINT, training(launch), *flags, group=True)
    assert run.code == 130, run.err
    assert run.summary["outcome"] == "interrupted"
    assert "in time" not in run.err
    assert run.out.splitlines()[:2] == ["exiting from training early", "tested 4000"]
    assert Path(run.folder / "worker-1.log").read_text() == "exiting from training early\ntested 4000\n"
    final = run.final()
    for worker in range(2):
        exported = torch.load(launch.tmp_path / f"exported-{worker}.pt")
        assert {name: exported[name].tolist() for name in final} == {n: v.tolist() for n, v in final.items()}
    assert main(["check", str(run.folder)]) == 0, capsys.readouterr().out


def test_a_loop_without_a_loader_sees_ctrl_c_at_its_next_step(launch: Launch) -> None:
    script = (
        training(launch).replace("optimizer, loader = ", "optimizer = ").replace("optimizer, loader)", "optimizer)")
    )
    run = launch.signalled(signal.SIGINT, script.replace("in loader:", "in [data.tensors]:"), "-p", "asp", group=True)
    assert run.code == 130, run.err
    assert "in time" not in run.err
    assert run.log(0) == run.log(1) == "exiting from training early\ntested 4000\n"


def test_a_script_that_lets_ctrl_c_through_ends_without_a_traceback(launch: Launch) -> None:
    script = training(launch).replace("except KeyboardInterrupt:\n    print", "finally:\n    print")
    run = launch.signalled(signal.SIGINT, script, "-p", "asp", group=True)
    assert run.code == 130, run.err
    assert run.log(0) == run.log(1) == "exiting from training early\n"


def test_sigterm_ends_a_script_where_it_is(launch: Launch) -> None:
    run = launch.signalled(signal.SIGTERM, training(launch), "-p", "asp")
    assert run.code == 130, run.err
    assert run.summary["outcome"] == "interrupted"
    assert run.log(0) == run.log(1) == ""
