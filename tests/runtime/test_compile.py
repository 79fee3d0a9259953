"""``hap.parallelize(..., compile=...)``: the same training by compiled graphs, and errors where none can be made."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import hap
from hap.errors import HapError
from hap.runtime.collectives import moves
from hap.runtime.compiled import compiler
from tests import models
from tests.runtime.jobs import cluster, loss_of
from tests.runtime.launch import Launcher

Losses = list[torch.Tensor]
Gradients = list[torch.Tensor | None]


def trained(built: models.Built, ranks: int, compile: Any, **options: Any) -> tuple[Any, Losses, Gradients]:
    """The model, losses in evaluation and of three microbatches, and what they add up to."""
    module, args, kwargs = built
    torch.manual_seed(0)
    model: Any = hap.parallelize(module, cluster(ranks), args, kwargs, compile=compile, **options)
    with torch.no_grad():
        losses = [loss_of(model(*args, **kwargs))]
    with model.no_sync():
        losses += [loss_of(model(*args, **kwargs)) for _ in range(2)]
        for loss in losses[1:]:
            loss.backward()
    losses.append(loss_of(model(*args, **kwargs)))
    losses[-1].backward()
    return model, losses, [parameter.grad for parameter in model.parameters()]


def stretches(backend: str) -> tuple[list[int], dict[str, Any]]:
    """Options of ``torch.compile``, and the numbers of operators in all that is compiled with them."""
    compiled: list[int] = []

    def counting(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        compiled.append(sum(node.op == "call_function" for node in module.graph.nodes))
        return torch._dynamo.lookup_backend(backend)(module, examples)

    return compiled, {"backend": counting}


def compare(build: Any, ranks: int, backend: str, **options: Any) -> tuple[list[int], Any]:
    """Train with and without a compiler; what was compiled, and the compiled model."""
    _, *plain = trained(build(), ranks, False, **options)
    compiled, compiler = stretches(backend)
    model, *found = trained(build(), ranks, compiler, **options)
    torch.testing.assert_close(found, plain)
    return compiled, model


def test_one_process_trains_alike() -> None:
    """Dropout's masks included; the graphs of inference, forward and backward are compiled once each."""
    compiled, _ = compare(lambda: models.mlp(torch.float32, dropout=0.3), 1, "aot_eager")
    assert len(compiled) == 3
    assert min(compiled) > 10


def on_two_ranks(rank: int) -> tuple[int, int]:
    """Along the features, so that collectives stand in the middle."""
    compiled, model = compare(lambda: models.mlp(torch.float32, dropout=0.3), 2, "eager", forbidden_axes=["batch"])
    local = model._hap_session.latest.step.program
    return len(compiled), sum(moves(node.target) for node in local.forward_graph.nodes)


def test_stretches_between_collectives_are_compiled() -> None:
    with Launcher(2) as launcher:
        for compiled, collectives in launcher.run(on_two_ranks):
            assert collectives > 1
            assert compiled > 2 * collectives


@pytest.mark.skipif("HAP_TEST_EXAMPLES" not in os.environ, reason="the C++ compiler takes half a minute")
def test_the_default_backend_trains_alike() -> None:
    compare(lambda: models.mlp(torch.float32, dropout=0.3), 1, "inductor")


@pytest.mark.parametrize(
    ("compile", "message"), [("no such", "no such"), (3, "expected True"), ({"mode": "x"}, "mode")]
)
def test_what_is_no_compiler_is_refused(compile: Any, message: str) -> None:
    with pytest.raises(HapError, match=message):
        hap.parallelize(nn.Linear(2, 2), cluster(1), compile=compile)


def test_a_missing_cpp_compiler_is_told_before_anything_is_planned() -> None:
    with (
        mock.patch("torch._inductor.cpp_builder.get_cpp_compiler", side_effect=RuntimeError("no g++")),
        pytest.raises(HapError, match=r"no g\+\+.*needs a C\+\+ compiler"),
    ):
        hap.parallelize(nn.Linear(2, 2), cluster(1), compile=True)


@pytest.mark.parametrize(
    "options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}, {"backend": "cudagraphs"}]
)
def test_recorded_cuda_graphs_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HapError, match="records CUDA graphs, whose results are overwritten"):
        compiler(options, torch.device("cuda"))
