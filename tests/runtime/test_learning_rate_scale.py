"""`--learning-rate-scale X` trains as a script does whose own rates are X times as high, wherever it is stepped."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.runs import side_by_side
from support.scripts import training

SCRIPT = training(
    before="optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)",
    after="paceline.finish()\nprint('rate', optimizer.param_groups[0]['lr'])",
)


@pytest.mark.parametrize(
    ("protocol", "workers"),
    [("bsp", "2"), ("sync-switch:switch_at=1", "2"), ("all-reduce", "2"), ("ps-plus", "1"), ("ad-psgd", "1")],
)
def test_scaled_rates_train_as_higher_ones_of_the_script(protocol: str, workers: str, launch: Launch) -> None:
    flags = ("-n", workers, "-p", protocol)
    runs = {
        "scaled": lambda: launch.run(SCRIPT, *flags, "--learning-rate-scale", "2"),
        "higher": lambda: launch.run(SCRIPT.replace("lr=0.05", "lr=0.1"), *flags),
        "plain": lambda: launch.run(SCRIPT, *flags),
    }
    with side_by_side(runs) as futures:
        made = {name: future.result().completed() for name, future in futures.items()}
    hashes = {name: run.summary["final_parameters_sha256"] for name, run in made.items()}
    assert hashes["scaled"] == hashes["higher"] != hashes["plain"]
    assert made["scaled"].log(0) == "rate 0.05\n", "the script's own rate stays as it is"
