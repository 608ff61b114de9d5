"""Scripts that move the prepared model's parameters beside the prepared optimizer: one line ends the run at once."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.scripts import script
from support.suites import each

SCRIPT = script("""
class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])

torch.manual_seed(0)
what = sys.argv[1]
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8), epochs=3)
other = nn.Linear(4, 1)
others = Plain(other.parameters())

def loss_of(model, inputs, wanted):
    return (model(inputs) - wanted).square().mean()

for epoch in range(3):
    if epoch == 1 and what == "new":
        optimizer = Plain(model.parameters())
    for inputs, wanted in loader:
        if what == "by hand" and epoch:
            gradients = torch.autograd.grad(loss_of(model, inputs, wanted), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.data.sub_(0.1 * gradient)
            continue
        if what == "beside":
            loss_of(other, inputs, wanted).backward()
            others.step()
            others.zero_grad()
        if what == "attack":
            noise = torch.zeros_like(inputs, requires_grad=True)
            loss_of(other, inputs + noise, wanted).backward()
            Plain([noise]).step()
        loss_of(model, inputs, wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
if what == "fold":
    paceline.finish()
    teacher = copy.deepcopy(model)
    paceline.prepare(teacher, Plain(teacher.parameters()))
if what == "after":
    tuned = Plain(model.parameters())
    loss_of(model, x, x.sum(1, keepdim=True)).backward()
    tuned.step()
if what == "by hand after":
    for _ in range(3):
        model.zero_grad()
        loss_of(model, x, x.sum(1, keepdim=True)).backward()
        for parameter in model.parameters():
            parameter.data.sub_(0.1 * parameter.grad)
paceline.finish()
print("has ended")
""")
LINES = {
    "new": 'steps another optimizer, Plain, over the parameter "weight"',
    "by hand": "makes no step of the gradient",
    "after": 'steps the optimizer Plain over the parameter "weight" of the prepared model after its last epoch',
    "by hand after": 'trains by hand over the parameter "weight" of the prepared model after its last epoch',
}


@pytest.mark.parametrize(
    ("protocol", "what"),
    each(
        [(protocol, what) for protocol in ("bsp", "asp", "all-reduce", "ad-psgd", "ps-plus") for what in LINES],
        default=[("asp", "new"), ("all-reduce", "by hand"), ("ad-psgd", "after")],
    ),
)
def test_training_beside_the_prepared_optimizer_ends_the_run_in_one_line(
    protocol: str, what: str, launch: Launch
) -> None:
    ended = launch.run(SCRIPT, "-n", "2", "-p", protocol, args=(what,)).refused(LINES[what])
    assert ended.err.count("paceline: the script") == 1
    assert "has ended" not in ended.out


def test_one_line_says_so_where_parameters_are_trained_in_the_loop_that_no_other_worker_gets(launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-n", "2", "-p", "bsp", args=("beside",)).completed()
    assert ended.err.count("worker 0 steps another optimizer in its loop, Plain, over parameters") == 1
    assert "another optimizer" not in launch.run(SCRIPT, "-n", "2", "-p", "bsp", args=("attack",)).completed().err


@pytest.mark.parametrize("protocol", each(["bsp", "asp", "all-reduce", "ad-psgd", "ps-plus"], default=["bsp"]))
def test_a_second_fold_in_one_process_is_refused_with_how_to_give_each_a_run(protocol: str, launch: Launch) -> None:
    launch.run(SCRIPT, "-n", "2", "-p", protocol, args=("fold",)).refused(
        "give each fold, trial or phase a run of its own"
    )


GROUPS = script("""
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"rates": torch.tensor([0.1, 0.2])})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["rates"][0].item())

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
rest = nn.Parameter(torch.zeros(1))
groups = [{"params": list(layer.parameters())} for layer in model]
optimizer = Own(groups) if "rates" in sys.argv[1] else torch.optim.SGD(groups, lr=0.1)
if "STEP" in sys.argv[1]:
    exec(sys.argv[1])
model, optimizer = paceline.prepare(model, optimizer)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    exec(sys.argv[1])
""")
CHANGED = {
    "optimizer.param_groups[0]['params'].append(rest)": "changed which parameters",
    "optimizer.param_groups[0]['params'].pop()": "changed which parameters",
    "del optimizer.param_groups[1]": "changed which parameters",
    "optimizer.param_groups = optimizer.param_groups[::-1]": "changed which parameters",
    "optimizer.param_groups[0]['rates'].mul_(2)": 'changed "rates"',
    "optimizer.param_groups[0]['rates'] = torch.ones(2)": 'changed "rates"',
    "optimizer.add_param_group({'params': [rest]})": "add_param_group()",
    "model[0].weight.data.clamp_(-0.001, 0.001)": 'changed the parameter "0.weight" after the first step',
    "optimizer.step = lambda STEP=None: None": "step() was replaced before prepare()",
}


@pytest.mark.parametrize(
    ("protocol", "change"),
    each(
        [(protocol, change) for protocol in ("bsp", "all-reduce") for change in CHANGED],
        default=[("bsp", list(CHANGED)[2]), ("bsp", list(CHANGED)[6]), ("all-reduce", list(CHANGED)[7])],
    ),
)
def test_what_of_the_optimizer_and_its_parameters_can_t_be_followed_is_refused_in_one_line(
    protocol: str, change: str, launch: Launch
) -> None:
    ended = launch.run(GROUPS, "-n", "1", "-p", protocol, args=(change,))
    if protocol == "all-reduce" and "rates" in change:  # the optimizer is the worker's own
        ended.completed()
    else:
        ended.refused(CHANGED[change])
