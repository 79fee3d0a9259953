"""Recurrent layers and cells on hap's own operators, in the form of ``torch.lstm`` and the like.

The products of the inputs with the weights are ordinary ones for all steps at once; one operator for each layer and
direction is left. Cells are products and element-wise operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

States = tuple[Tensor, ...]
"""What a layer carries from step to step, without the dimension of steps: (hidden,) or (hidden, cell)."""

Recurrence = Callable[[Tensor, States, Sequence[Tensor], bool], States]
"""From gates (steps, batch, ...), the states before the first step, the layer's parameters and whether it runs from
the last step to the first: the states of all steps."""


def _layers(
    recurrence: Recurrence,
    summed_biases: bool,
    x: Tensor,
    initial: States,
    parameters: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers, each on the outputs of the one below: the outputs, and the last states, one from each direction."""
    directions = 2 if bidirectional else 1
    count = len(parameters) // (layers * directions)
    last: list[States] = []
    for layer in range(layers):
        made = []
        for direction in range(directions):
            at = layer * directions + direction
            own = parameters[at * count : (at + 1) * count]
            bias = None
            if biases:
                bias = own[2] + own[3] if summed_biases else own[2]
            gates = F.linear(x, own[0], bias)
            if batch_first and layer == 0:
                gates = gates.transpose(0, 1)
            # Under autocast the gates are in half precision, and so is the rest.
            own = [p.to(gates.dtype) for p in own]
            states = recurrence(gates, tuple(s[at].to(gates.dtype) for s in initial), own, direction == 1)
            made.append(states[0])
            last.append(tuple(s[0] if direction == 1 else s[-1] for s in states))
        x = torch.cat(made, -1) if bidirectional else made[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout)
    if batch_first:
        x = x.transpose(0, 1)
    return x, *(torch.stack(states) for states in zip(*last, strict=True))


def lstm(x: Tensor, hx: Sequence[Tensor], parameters: Sequence[Tensor], biases: bool, *rest: Any) -> tuple[Tensor, ...]:
    """As ``torch.lstm``: outputs, last hidden states, last cell states."""

    def recurrence(gates: Tensor, states: States, own: Sequence[Tensor], reverse: bool) -> States:
        projection = own[-1] if len(own) == (5 if biases else 3) else None
        made: States = torch.ops.hap.lstm(gates, *states, own[1], projection, reverse)
        return made

    return _layers(recurrence, True, x, tuple(hx), parameters, biases, *rest)


def gru(x: Tensor, hx: Tensor, parameters: Sequence[Tensor], biases: bool, *rest: Any) -> tuple[Tensor, ...]:
    """As ``torch.gru``: outputs, last hidden states."""

    def recurrence(gates: Tensor, states: States, own: Sequence[Tensor], reverse: bool) -> States:
        return (torch.ops.hap.gru(gates, *states, own[1], own[3] if biases else None, reverse),)

    return _layers(recurrence, False, x, (hx,), parameters, biases, *rest)


def _rnn(relu: bool) -> Callable[..., tuple[Tensor, ...]]:
    def rnn(x: Tensor, hx: Tensor, parameters: Sequence[Tensor], biases: bool, *rest: Any) -> tuple[Tensor, ...]:
        def recurrence(gates: Tensor, states: States, own: Sequence[Tensor], reverse: bool) -> States:
            return (torch.ops.hap.rnn(gates, *states, own[1], relu, reverse),)

        return _layers(recurrence, True, x, (hx,), parameters, biases, *rest)

    return rnn


# ---- cells


def _parts(gates: Tensor, count: int) -> tuple[Tensor, ...]:
    return gates.view(*gates.shape[:-1], count, gates.shape[-1] // count).unbind(-2)


def lstm_cell(
    x: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``torch.lstm_cell``: the new hidden and cell state."""
    i, f, g, o = _parts(F.linear(x, w_ih, b_ih) + F.linear(hx[0], w_hh, b_hh), 4)
    c = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """As ``torch.gru_cell``: the new hidden state."""
    r, z, n = _parts(F.linear(x, w_ih, b_ih), 3)
    r_h, z_h, n_h = _parts(F.linear(hx, w_hh, b_hh), 3)
    z = (z + z_h).sigmoid()
    n = (n + (r + r_h).sigmoid() * n_h).tanh()
    return (hx - n) * z + n


def _cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(
        x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        return activation(F.linear(x, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))

    return cell


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: _rnn(relu=False),
    torch.rnn_relu: _rnn(relu=True),
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: _cell(torch.tanh),
    torch.rnn_relu_cell: _cell(torch.relu),
}
"""By PyTorch's function. Recurrent ones take their arguments by position, as ``torch.nn`` passes them."""
