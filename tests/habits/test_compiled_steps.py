"""Scripts that compile or script their model, or a function with `optimizer.step()` in it, train as they do alone."""

from __future__ import annotations

from itertools import product

import pytest

from support.launch import Launch
from support.scripts import script
from support.suites import each

SCRIPT = script("""
torch.set_num_threads(1)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, x.sum(1, keepdim=True))

def compiled(function):
    return torch.compile(function, backend="eager")

def whole_step(model, optimizer):
    @compiled
    def step(inputs, wanted):
        optimizer.zero_grad()
        loss = (model(inputs) - wanted).square().mean()
        loss.backward()
        paceline.log(loss=loss.item())
        optimizer.step()

    return step

def only_the_optimizer_s(model, optimizer):
    optimizer_s = compiled(optimizer.step)

    def step(inputs, wanted):
        (model(inputs) - wanted).square().mean().backward()
        optimizer_s()
        optimizer.zero_grad()

    return step

def plain(model, optimizer):
    def step(inputs, wanted):
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

def train(what, prepared):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(4)] if what.startswith("a_") else []
    model = nn.Sequential(nn.Linear(4, 4), *norm, nn.Tanh(), nn.Linear(4, 1))
    if what == "a_scripted_model":
        model = torch.jit.script(model)
    if what == "a_model_compiled_before":
        model = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, batch_size=8)
    if prepared:
        model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
    if what == "a_model_compiled_after":
        model = torch.compile(model, backend="aot_eager")
    step = globals().get(what, plain)(model, optimizer)
    for epoch in range(2):
        for inputs, wanted in loader:
            step(inputs, wanted)
    return [value.clone() for value in model.state_dict().values()]

order = (False, True) if sys.argv[2] == "alone_first" else (True, False)  # torch compiles once in a process
one, other = (train(sys.argv[1], prepared) for prepared in order)
print("apart by", max((left - right).abs().max().item() for left, right in zip(one, other)))
""")


WHATS = ("whole_step", "only_the_optimizer_s")
MODELS = ("a_model_compiled_before", "a_model_compiled_after", "a_scripted_model")
ORDERS = ("alone_first", "prepared_first")
CASES = list(product(("all-reduce", "bsp", "asp", "ad-psgd", "ps-plus"), WHATS, ORDERS))
BY_DEFAULT = [CASES[0], ("bsp", "only_the_optimizer_s", "prepared_first"), *product(("asp",), MODELS, ORDERS[1:])]


@pytest.mark.parametrize(("protocol", "what", "order"), each([*CASES, *BY_DEFAULT[2:]], default=BY_DEFAULT))
def test_a_compiled_step_trains_as_alone(protocol: str, what: str, order: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-n", "1", "-p", protocol, args=(what, order)).completed()
    assert float(ended.out.split("apart by")[1].split()[0]) < (
        1e-6 if protocol == "ps-plus" or what == "a_scripted_model" else 1e-12
    )
    assert "paceline/training/" not in ended.out + ended.err, "the compiler has looked into Paceline"
