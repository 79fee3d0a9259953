"""Cases of recurrent layers and of the loss of sequences without alignment."""

from __future__ import annotations

from typing import Any

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, case

own = torch.ops.hap


def lengths(s: Sketch, batch: int, steps: int) -> Ref:
    return s.constant(torch.randint(1, steps + 1, (batch,), generator=s.generator))


def lstm(s: Sketch, projection: bool, reverse: bool) -> tuple[list[Any], list[Any]]:
    t, b, h, p = s.sizes(4)
    p = p if projection else h
    w_hr = s.tensor(p, h) if projection else None
    args = [s.tensor(t, b, 4 * h), s.tensor(b, p), s.tensor(b, h), s.tensor(4 * h, p), w_hr]
    return args, s.call(own.lstm.default, *args, reverse)


@case("hap.lstm.default", "S1 S0 S0 R -> S1 S1")
def _(s: Sketch) -> None:
    lstm(s, projection=False, reverse=False)


@case("hap.lstm.default", "S1 S0 S0 R R -> S1 S1")
def _(s: Sketch) -> None:
    lstm(s, projection=True, reverse=True)


@case("hap.lstm_backward.default", "S1 S1 S1 S0 R R S1 -> S1 S0 S0 P, P P R R R R R -> P P P P")
def _(s: Sketch) -> None:
    (parts, _, *args), (out, cells) = lstm(s, projection=True, reverse=False)
    s.call(own.lstm_backward.default, s.tensor(*s.shape(out)), s.tensor(*s.shape(cells)), parts, *args, cells, False)


@case("hap.lstm_backward.default", "S1 S1 S0 R S1 -> S1 S0 S0, P R R R R -> P P P")
def _(s: Sketch) -> None:
    (parts, _, *args), (out, cells) = lstm(s, projection=False, reverse=True)
    s.call(own.lstm_backward.default, s.tensor(*s.shape(out)), None, parts, *args, cells, True)


def gru(s: Sketch, bias: bool, reverse: bool) -> tuple[list[Any], Any]:
    t, b, h = s.sizes(3)
    args = [s.tensor(t, b, 3 * h), s.tensor(b, h), s.tensor(3 * h, h), s.tensor(3 * h) if bias else None]
    return args, s.call(own.gru.default, *args, reverse)


@case("hap.gru.default", "S1 S0 R R -> S1")
def _(s: Sketch) -> None:
    gru(s, bias=True, reverse=False)


@case("hap.gru.default", "S1 S0 R -> S1")
def _(s: Sketch) -> None:
    gru(s, bias=False, reverse=True)


@case("hap.gru_backward.default", "S1 S1 S1 S1 R -> S1 S1 S0, P R R R R -> P P P")
def _(s: Sketch) -> None:
    (gates, _, w_hh, _), out = gru(s, bias=True, reverse=True)
    s.call(own.gru_backward.default, s.tensor(*s.shape(out)), gates, s.tensor(*s.shape(gates)), out, w_hh, True)


def rnn(s: Sketch, relu: bool, reverse: bool) -> tuple[Ref, Any]:
    t, b, h = s.sizes(3)
    weight = s.tensor(h, h)
    return weight, s.call(own.rnn.default, s.tensor(t, b, h), s.tensor(b, h), weight, relu, reverse)


@case("hap.rnn.default", "S1 S0 R -> S1")
def _(s: Sketch) -> None:
    rnn(s, relu=True, reverse=False)


@case("hap.rnn_backward.default", "S1 R S1 -> S1 S0, P R R -> P P")
def _(s: Sketch) -> None:
    weight, out = rnn(s, relu=False, reverse=True)
    s.call(own.rnn_backward.default, s.tensor(*s.shape(out)), weight, out, False, True)


def ctc(s: Sketch) -> list[Ref]:
    b, c, n = s.sizes(3)
    t = 2 * n + 1
    probabilities = s.constant(torch.randn(t, b, c + 1, generator=s.generator, dtype=torch.float64).log_softmax(-1))
    targets = s.constant(torch.randint(1, c + 1, (b, n), generator=s.generator))
    return [probabilities, targets, lengths(s, b, t), lengths(s, b, n)]


@case("hap.ctc_loss.default", "S1 S0 S0 S0 -> S0")
def _(s: Sketch) -> None:
    s.call(own.ctc_loss.default, *ctc(s), 0, True)


@case("hap.ctc_loss_backward.default", "S0 S1 S0 S0 S0 -> S1, P R R R R -> P")
def _(s: Sketch) -> None:
    args = ctc(s)
    s.call(own.ctc_loss_backward.default, s.tensor(s.shape(args[2])[0]), *args, 0, True)
