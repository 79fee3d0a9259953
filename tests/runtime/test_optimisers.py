"""Which optimisers work element by element, so that shards may be trained: tried on all of torch.optim."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hap.runtime import optimisers
from hap.runtime.optimisers import is_known, refused_name

WAYS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"fused": True, "momentum": 0.9}, {"foreach": True}],
    "Adam": [{"amsgrad": True}, {"fused": True}, {"foreach": True}],
    "AdamW": [{"amsgrad": True}, {"fused": True}, {"foreach": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}, {"foreach": True}],
    "Adagrad": [{"fused": True}, {"foreach": True}],
    **{name: [{}, {"foreach": True}] for name in ("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop")},
}
KINDS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


def trained(kind: Any, pieces: list[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    """The pieces of rows of one tensor, side by side after four steps; an empty one is among them."""
    parameters = [torch.nn.Parameter(piece.clone()) for piece in pieces]
    optimiser = kind(parameters, lr=0.01, **options)
    generator = torch.Generator().manual_seed(2)
    rows = [len(piece) for piece in pieces]
    for _ in range(4):
        gradient = torch.randn(8, 5, dtype=torch.float64, generator=generator)
        for parameter, part in zip(parameters, gradient.split(rows), strict=True):
            parameter.grad = part.clone()
        optimiser.step()
    return torch.cat([parameter.detach() for parameter in parameters])


def whole() -> torch.Tensor:
    return torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_all_are_known() -> None:
    # SparseAdam is for sparse gradients, which hap makes none of, and says so itself.
    assert {name for name, kind in KINDS.items() if refused_name(kind) is None} == {*WAYS, "SparseAdam"}
    assert {name for name, kind in KINDS.items() if is_known(kind)} == {*WAYS, "SparseAdam"}
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        trained(torch.optim.SparseAdam, [whole()], {})


@pytest.mark.parametrize(("name", "options"), [(name, each) for name, ways in WAYS.items() for each in ways])
def test_shards_are_trained_as_the_whole(name: str, options: dict[str, Any]) -> None:
    decay = {} if name == "Rprop" else {"weight_decay": 0.1}
    expected = trained(KINDS[name], [whole()], options | decay)
    found = trained(KINDS[name], list(whole().split([3, 0, 5])), options | decay)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_what_is_refused_would_differ(name: str) -> None:
    expected = trained(KINDS[name], [whole()], {})
    found = trained(KINDS[name], list(whole().split([3, 5])), {})
    assert float((found - expected).abs().max()) > 1e-4


def test_refused_by_name() -> None:
    for name in (
        "Adafactor", "Adam_mini", "AdamMini", "CAME", "DAdaptAdam", "DistributedShampoo", "FusedLAMB", "FusedNovoGrad",
        "GSAM", "GaLoreAdamW8bit", "LAMB8bit", "LARC", "MuonWithAuxAdam", "NVLAMB", "Prodigy", "PytorchLARS",
        "Ranger21", "SAM", "SM3", "SOAP", "Shampoo", "SingleDeviceMuon", "StableAdamW",
    ):  # fmt: skip
        assert refused_name(type("Own", (type(name, (torch.optim.Adam,), {}),), {})) == name
    for name in ("AdamW", "LambdaAdam", "AdamWScheduleFree", "SophiaG", "Lion", "Adan", "Sample", "Apollonia"):
        assert refused_name(type(name, (torch.optim.Optimizer,), {})) is None


class Steepest(torch.optim.Optimizer):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=0.1)


class SteepestSGD(torch.optim.SGD):
    pass


@pytest.mark.parametrize("kind", [Steepest, SteepestSGD])
def test_of_unknown_ones_there_is_one_warning(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    whole, shard = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimisers.watch()
    optimisers.mark(shard, "weight", sharded=True, counted=True)
    for parameter, expected in ((whole, 0), (shard, 1), (shard, 1)):
        parameter.grad = torch.ones(2)
        kind([parameter], {} if kind is Steepest else 0.1).step()
        found = [one for one in recwarn if "hap does not know the optimiser Steepest" in str(one.message)]
        assert len(found) == (expected if kind is Steepest else 0)
