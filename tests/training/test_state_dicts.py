"""`state_dict()` is computed by the model's own code, of the newest version, whatever became of names."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from paceline.training.model.state_dicts import STATE_DICTS
from paceline.training.model.structure import Followed
from paceline.training.process import ScriptProcess
from paceline.training.replaced import put_back, replace


class Halved(nn.Linear):
    """Saves half of its bias."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "half"] = self.bias / 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(3, 3), nn.BatchNorm1d(3)
        self.out, self.halved = nn.Linear(3, 3, bias=False), Halved(3, 3)


class Shows:
    """A session whose model shows 3 everywhere. Its newest version is 5."""

    def __init__(self) -> None:
        self.model = Net()
        self.followed = Followed(self.model)
        self.holder = self
        self.live, self.steps, self.times = True, 1, 0
        self.looping, self.has_steps_of_its_own = False, False
        self.own = False
        self._fill(3.0)

    def changed(self) -> list[str]:
        return ["out.weight"] if self.own else []

    def look_at_structure(self) -> None:
        pass

    @contextmanager
    def showing_newest(self) -> Iterator[None]:
        self.times += 1
        self._fill(5.0)
        yield
        self._fill(3.0)

    def _fill(self, value: float) -> None:
        with torch.no_grad():
            for parameter in self.followed.parameters.values():
                parameter.fill_(value)


@pytest.fixture
def shown() -> Iterator[Shows]:
    session: Any = Shows()
    ScriptProcess.session = session
    replace(STATE_DICTS)
    yield session
    put_back(STATE_DICTS)
    ScriptProcess.session = None


def seen(state: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: sorted(set(value.flatten().tolist())) for name, value in state.items()}


def test_the_whole_model_its_parts_and_modules_around_it_have_the_newest_version(shown: Shows) -> None:
    for module, key in (
        (shown.model, "out.weight"),
        (shown.model.out, "weight"),
        (nn.Sequential(shown.model, nn.Linear(1, 1)), "0.out.weight"),
    ):
        state: Any = module.state_dict()
        assert seen(state)[key] == [5.0]
        assert state._metadata  # torch's own, which loading looks at
    assert shown.times == 3
    assert seen(dict(shown.model.named_parameters()))["out.weight"] == [3.0]


def test_a_prefix_and_a_destination_of_the_scripts_own_are_kept(shown: Shows) -> None:
    mine = torch.zeros(2)
    state: dict[str, Any] = {"mine": mine}
    shown.model.state_dict(destination=state, prefix="net.")
    assert state["mine"] is mine
    assert seen(state)["net.halved.bias"] == [5.0]


def test_code_of_the_models_own_sees_the_newest_version_too(shown: Shows) -> None:
    shown.model._register_state_dict_hook(
        lambda _, state, *rest: state.update(summed=state["out.weight"].sum())  # type: ignore[no-any-return]
    )
    state = shown.model.state_dict()
    assert state["halved.half"].tolist() == [2.5] * 3
    assert state["summed"].item() == 45.0
    state["out.weight"].zero_()
    assert seen(dict(shown.model.named_parameters()))["out.weight"] == [3.0]


def test_a_thread_that_asks_meanwhile_gets_the_newest_version_too_and_disturbs_nothing(shown: Shows) -> None:
    states: list[Any] = []
    other = threading.Thread(target=lambda: states.append(shown.model.state_dict()))

    def ask(*_: Any) -> None:
        if not states and not other.is_alive():
            other.start()
            other.join(0.2)  # it waits for this thread's to end

    shown.model.embed._register_state_dict_hook(ask)
    states.append(shown.model.state_dict())
    other.join()
    for state in states:
        assert {tuple(seen(state)[name]) for name in shown.followed.parameters} == {(5.0,)}
    assert shown.times == 2


def test_what_is_tied_after_prepare_is_one_tensor_in_the_checkpoint(shown: Shows) -> None:
    shown.model.out.weight = shown.model.embed.weight
    state = shown.model.state_dict()
    state["embed.weight"][0, 0] = 7.0
    assert state["out.weight"][0, 0] == 7.0
    tied, untied = io.BytesIO(), io.BytesIO()
    torch.save({name: state[name] for name in ("embed.weight", "out.weight")}, tied)
    torch.save({name: state[name].clone() for name in ("embed.weight", "out.weight")}, untied)
    assert len(tied.getvalue()) < len(untied.getvalue())


def test_pruned_and_parametrized_layers_are_saved_under_their_names_of_now(shown: Shows) -> None:
    prune.l1_unstructured(shown.model.out, "weight", 0.5)
    parametrizations.orthogonal(shown.model.embed)
    state = seen(shown.model.state_dict())
    assert state["out.weight_orig"] == [5.0]
    assert state["out.weight_mask"] == [0.0, 1.0]
    assert state.keys() & {"out.weight", "embed.weight", "embed.parametrizations.weight.original"} == {
        "embed.parametrizations.weight.original"
    }


def test_with_keep_vars_they_are_the_models_own_tensors(shown: Shows) -> None:
    assert shown.model.state_dict(keep_vars=True)["out.weight"] is shown.model.out.weight


def test_values_that_the_script_has_put_in_are_what_is_saved(shown: Shows) -> None:
    shown.own = True
    assert seen(shown.model.state_dict())["out.weight"] == [3.0]


def test_modules_of_the_scripts_own_are_left_alone(shown: Shows) -> None:
    other = Net()
    assert other.state_dict()["out.weight"].data_ptr() == other.out.weight.data_ptr()
    assert shown.times == 0


def test_a_buffer_is_followed_to_a_new_name_and_if_a_forward_puts_another_in_its_place() -> None:
    model = Net()
    followed = Followed(model)
    model.norm.num_batches_tracked = model.norm.num_batches_tracked + 1
    model.moved = model.norm
    del model.norm
    assert followed.buffers()["norm.num_batches_tracked"].item() == 1
    del model.moved.running_mean  # type: ignore[union-attr]
    assert "norm.running_mean" not in followed.buffers()


def test_scripted_modules_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))  # type: ignore[no-untyped-call]
    followed = Followed(scripted)
    scripted(torch.ones(3, 2))
    assert followed.buffers()["1.num_batches_tracked"].item() == 1
    assert followed.parameters.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    session: Any = SimpleNamespace(followed=followed, live=True, steps=0, look_at_structure=lambda: None)
    monkeypatch.setattr(ScriptProcess, "session", session)
    replace(STATE_DICTS)
    state = scripted.state_dict()
    put_back(STATE_DICTS)
    assert state["0.weight"].data_ptr() != dict(scripted.named_parameters())["0.weight"].data_ptr()
