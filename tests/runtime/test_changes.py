"""A module that changes after it was parallelised raises at the next call, and the error names what changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import HapError
from tests import models
from tests.runtime import jobs


def _set_attribute(model: Any) -> None:
    model.dropout.p = 0.25


def _replace(model: Any) -> None:
    model.dropout = nn.Identity()


def _add_hook(model: Any) -> None:
    model.layers[1].register_forward_hook(lambda *_: None)


def _replace_parameter(model: Any) -> None:
    model.layers[1].weight = nn.Parameter(torch.zeros_like(model.layers[1].weight))


def _assign_parameters(model: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def _add_parameter(model: Any) -> None:
    model.layers[1].gain = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_replace_parameter, r'parameter "layers\.1\.weight" was replaced by another'),
        (_assign_parameters, r'parameter ".*" was replaced by another'),
        (_add_parameter, r'parameters of "layers\.1" were added'),
        (_set_attribute, r'"dropout\.p" was 0\.5 and is 0\.25'),
        (_replace, r'submodule "dropout" was replaced'),
        (_add_hook, r'hook of "layers\.1"'),
    ],
)
def test_module_changed_afterwards(change: Any, message: str) -> None:
    module, args, _ = models.mlp(torch.float32, dropout=0.5)
    model = hap.parallelize(module, jobs.cluster(1), args)
    model.note = 1  # an attribute that is new
    model.eval()
    model.requires_grad_(True)
    model(*args)
    change(model)
    with pytest.raises(HapError, match=message):
        model(*args)


@pytest.mark.parametrize("traced", [False, True])
def test_the_module_itself_may_get_forward_hooks(traced: bool) -> None:
    module, args, _ = models.mlp(torch.float32)
    if traced:
        module.register_forward_hook(lambda _, args, output: output + 1.0)
    plain: Any = copy.deepcopy(module)
    model = hap.parallelize(module, jobs.cluster(1), args)
    seen: list[str] = []

    def doubled(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        seen.append("before")
        return (args[0] * 2.0, *args[1:]), kwargs

    for one in (model, plain):
        one.register_forward_pre_hook(doubled, with_kwargs=True)
        one.register_forward_hook(lambda _, args, output: output * args[0].amax())
        one.register_forward_hook(lambda _, args, kwargs, output: seen.append("after"), with_kwargs=True)
        loss = one(*args)
        loss.backward()
        assert seen == ["before", "after"]
        seen.clear()
    assert loss.item() == pytest.approx(model(*args).item(), rel=1e-6)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad)
    model.register_full_backward_hook(lambda *_: None)
    with pytest.raises(HapError, match=r"_backward_hooks\) was added"):
        model(*args)


@pytest.mark.parametrize("add", ["register_forward_pre_hook", "register_forward_hook"])
def test_no_hook_between_those_of_the_graph(add: str) -> None:
    module, args, _ = models.mlp(torch.float32)
    getattr(module, add)(lambda *_: None)
    model = hap.parallelize(module, jobs.cluster(1), args)
    getattr(model, add)(lambda *_: None, prepend=True)
    with pytest.raises(HapError, match=r"hook of .* was added"):
        model(*args)


def test_no_pre_hook_behind_those_of_the_graph_and_the_error_says_why() -> None:
    module, args, _ = models.mlp(torch.float32)
    module.register_forward_pre_hook(lambda *_: None)
    model = hap.parallelize(module, jobs.cluster(1), args)
    model.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(HapError, match=r"\(_forward_pre_hooks\) was added .*part of the graph, which has no place"):
        model(*args)


@pytest.mark.parametrize("wrong", [{}, [(), {}], ((), {}, 0)])
def test_what_a_pre_hook_with_keyword_arguments_may_return(wrong: Any) -> None:
    module, args, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(1), args)
    model.register_forward_pre_hook(lambda *_: wrong, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"None or a tuple \(args, kwargs\)"):
        model(*args)


class Scaled(nn.Module):
    """Reads plain tensors: attributes of the module, one of an object, a global; and leaves one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.scale = torch.ones(3)
        self.limit = torch.tensor(0.5)
        self.note = torch.zeros(3)
        self.kept = [torch.ones(())]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x * self.scale + self.kept[0]).square().mean() * GLOBAL["factor"]
        return y * 2 if (x > self.limit).all() else y


GLOBAL = {"factor": torch.tensor(2.0)}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: model.scale.mul_(2),
            r'tensor "scale", which the forward reads, was changed in place.* a buffer',
        ),
        (lambda model: setattr(model, "scale", torch.zeros(3)), '"scale", which the forward reads, was replaced'),
        (lambda model: delattr(model, "scale"), '"scale", which the forward reads, was removed'),
        (lambda model: model.limit.add_(1), r'"limit", which the forward reads, was changed in place'),
        (lambda model: model.kept[0].add_(1), r'"kept\.0", which the forward reads, was changed in place'),
        (lambda model: GLOBAL.update(factor=torch.tensor(3.0)), 'GLOBAL.factor", .* was replaced by another'),
    ],
)
def test_plain_tensors_that_change(change: Any, message: str, early: bool) -> None:
    x = torch.ones(2, 3)
    model: Any = hap.parallelize(Scaled(), jobs.cluster(1), (x,) if early else None)
    before = dict(GLOBAL)
    try:
        model(x)
        model.note.add_(1)
        model.note = model(x)
        change(model)
        with pytest.raises(HapError, match=message):
            model(x)
    finally:
        GLOBAL.update(before)


def test_plain_tensors_that_change_before_the_first_call() -> None:
    model: Any = hap.parallelize(Scaled(), jobs.cluster(1))
    model.scale.mul_(3)
    for _ in range(2):
        with pytest.raises(HapError, match='"scale", which the forward reads, was changed in place'):
            model(torch.ones(2, 3))
