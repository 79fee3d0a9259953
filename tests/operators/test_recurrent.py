"""The recurrent operators by themselves; whole layers are compared with PyTorch's in tests/trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hap.operators  # noqa: F401

ops = torch.ops.hap
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 3, 4


def layer(name: str) -> tuple[nn.RNNBase, Callable[..., Any]]:
    """A layer of PyTorch, and hap's operator as a function of gates, states and whether it runs backwards."""
    options: dict[str, Any] = {"proj_size": 2} if name == "projected LSTM" else {}
    options |= {"nonlinearity": "relu"} if name == "RNN relu" else {}
    torch.manual_seed(0)
    kind = {"projected LSTM": nn.LSTM, "LSTM": nn.LSTM, "GRU": nn.GRU}.get(name, nn.RNN)
    module = kind(INPUTS, HIDDEN, bidirectional=True, **options).double()

    def run(gates: torch.Tensor, states: tuple[torch.Tensor, ...], weights: Any, reverse: bool) -> Any:
        if kind is nn.LSTM:
            return ops.lstm(gates, *states, weights[1], weights[4] if options else None, reverse)[0]
        if kind is nn.GRU:
            return ops.gru(gates, *states, weights[1], weights[3], reverse)
        return ops.rnn(gates, *states, weights[1], name == "RNN relu", reverse)

    return module, run


LAYERS = ["LSTM", "projected LSTM", "GRU", "RNN", "RNN relu"]


def initial(module: nn.RNNBase) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    sizes = [module.proj_size or HIDDEN, *([HIDDEN] if module.mode == "LSTM" else [])]
    return tuple(torch.randn(2, BATCH, size, dtype=torch.float64, requires_grad=True) for size in sizes)


@pytest.mark.parametrize("name", LAYERS)
def test_the_operators_are_well_formed(name: str) -> None:
    module, _ = layer(name)
    weights = list(module.parameters())
    gates = torch.randn(STEPS, BATCH, len(weights[0]), dtype=torch.float64, requires_grad=True)
    states = [s[0].detach().requires_grad_() for s in initial(module)]
    if module.mode == "LSTM":
        projection = weights[4] if module.proj_size else None
        torch.library.opcheck(ops.lstm.default, (gates, *states, weights[1], projection, False))
    elif name == "GRU":
        torch.library.opcheck(ops.gru.default, (gates, *states, weights[1], weights[3], True))
    else:
        torch.library.opcheck(ops.rnn.default, (gates, *states, weights[1], name == "RNN relu", False))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_half_precision_is_that_of_wide_states(name: str) -> None:
    module, run = layer(name)
    weights = [p.detach().bfloat16() for p in module.parameters()]
    gates = torch.randn(STEPS, BATCH, len(weights[0])).bfloat16()
    states = tuple(s[0].detach().bfloat16() for s in initial(module))
    got = run(gates, states, weights, False)
    wide = run(gates.float(), tuple(s.float() for s in states), [w.float() for w in weights], False)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, wide.bfloat16())


def test_flops_of_a_layer() -> None:
    """A product with the recurrent weights for each step; in the backward also for all steps, and for the weights."""
    (module, run), product = layer("LSTM"), 2 * STEPS * BATCH * 4 * HIDDEN * HIDDEN
    gates = torch.randn(STEPS, BATCH, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = run(gates, tuple(s[0] for s in initial(module)), list(module.parameters()), False)
        assert counter.get_total_flops() == product
        out.sum().backward()
    assert counter.get_total_flops() == 4 * product


def test_ctc_is_a_well_formed_operator() -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(7, 3, 5, dtype=torch.float64).log_softmax(-1).requires_grad_()
    args = (torch.randint(1, 5, (3, 2)), torch.tensor([7, 6, 3]), torch.tensor([2, 0, 1]), 0, False)
    torch.library.opcheck(ops.ctc_loss.default, (log_probs, *args))
