"""Workers that train on a store's versions while those are made, in real runs.

That no commit writes over what a worker needs is in `tests/host/test_commits.py`, and what a worker shows its script of
a version in `tests/training/test_holders.py`.
"""

from __future__ import annotations

from support.launch import Launch
from support.scripts import script, training

WORKERS = 4


def test_workers_that_begin_alike_draw_different_numbers(launch: Launch) -> None:
    draws = "if step == 0: print('draws', torch.randint(0, 2**62, (3,)).tolist())"
    run = launch.run(training(draws), "-n", str(WORKERS), "-p", "asp", "--shards", "static", "--tee", "none")
    drawn = {run.completed().log(worker) for worker in range(WORKERS)}
    assert all(line.startswith("draws [") for line in drawn)
    assert len(drawn) == WORKERS


ENDS_IN_COMMIT = script("""
model = nn.ParameterList(nn.Parameter(torch.zeros(2_000_000)) for _ in range(5))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(40):
    sum((p * 10.0 ** (step % 4)).sum() for p in model).backward()  # so the gradient is the same everywhere
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
paceline.finish()
print("values", sorted({value for p in model for value in (p.min().item(), p.max().item())}))
""")


def test_the_last_version_is_not_torn_by_what_the_scripts_do_while_it_is_made(launch: Launch) -> None:
    """At a limit the workers are let on before the store has made the last version of their gradients."""
    run = launch.run(ENDS_IN_COMMIT, "-n", "3", "-p", "bsp", "--record", "0", "--max-steps", "12").completed()
    assert run.log(0).splitlines()[-1] == "values [-1111.0]"
