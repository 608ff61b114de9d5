"""Steps with hyperparameters of another worker's."""

import torch

from paceline.store.store import scalars_of
from paceline.training.holders.stepping import with_scalars


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as some optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_a_step_uses_another_worker_s_hyperparameters_and_the_script_keeps_its_own() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=0.5, betas=(0.9, 0.99))
    groups = optimizer.param_groups
    before = scalars_of(optimizer)
    theirs = [dict(before[0], lr=0.25, betas=[0.5, 0.99])]
    with with_scalars(optimizer, theirs):
        assert (groups[0]["lr"], groups[0]["betas"]) == (0.25, (0.5, 0.99))
    assert scalars_of(optimizer) == before
    assert groups[0]["betas"] == (0.9, 0.99)


def test_a_rate_in_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    with with_scalars(optimizer, [{"lr": 0.25}]):
        assert rate.item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


def test_what_the_step_itself_changes_stays() -> None:
    optimizer = Counting([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    optimizer.param_groups[0]["steps"] = 3
    with with_scalars(optimizer, [{"lr": 0.25, "steps": 5}]):
        optimizer.step()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["steps"]) == (0.5, 6)
