"""Scripts that Hydra configures: one run, and a run for each job of a sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.launch import Launch
from support.scripts import script

PAGE = Path(__file__).parents[2] / "docs" / "habits.md"
TRAIN = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1)
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

BODY = '    """The training script, with paceline.prepare."""\n'


def sweep() -> str:
    text = PAGE.read_text().partition('```python title="sweep.py"\n')[2].partition("```")[0]
    assert BODY in text
    return text.replace(BODY, BODY + TRAIN).replace("workers=4", "workers=2")


@pytest.mark.real_run
def test_a_sweep_is_a_run_for_each_job_in_its_one_output_folder(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("lr: 0.01\n")
    (tmp_path / "sweep.py").write_text(sweep())
    words = [sys.executable, "sweep.py", "-m", "lr=0.05,0.1", "hydra.sweep.dir=swept"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(one.name for one in (tmp_path / "swept").iterdir() if one.is_dir()) == ["0", "1"]
    for job, rate in (("0", "0.05"), ("1", "0.1")):
        assert (tmp_path / "swept" / job / "run" / "summary.json").exists()
        assert f"'lr': {rate}" in (tmp_path / "swept" / job / "run" / "function.py").read_text()


def test_a_script_under_hydra_has_the_output_folder_that_is_named(launch: Launch, tmp_path: Path) -> None:
    text = script(
        f"""
import hydra

import paceline

@hydra.main(version_base=None)
def main(config):
{TRAIN}
    paceline.finish()
    torch.save(model.state_dict(), hydra.core.hydra_config.HydraConfig.get().runtime.output_dir + "/model.pt")

main()
"""
    )
    folder = tmp_path / "named"
    run = launch.run(text, "-n", "2", args=("+lr=0.1", f"hydra.run.dir={folder}")).completed()
    assert (folder / "model.pt").exists()
    assert (folder / ".hydra" / "config.yaml").exists()
    assert run.summary["samples"] == 64
