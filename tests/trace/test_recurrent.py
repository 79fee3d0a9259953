"""Recurrent layers, cells and CTC, traced, against eager PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import hap
from hap.errors import TraceError
from tests.trace.comparison import assert_equal_to_eager


class Layers(nn.Module):
    """All outputs and last states of a recurrent layer, squared or through a cosine, in one loss."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(3, 4, dtype=torch.float64, **options)

    def forward(self, x: torch.Tensor, *initial: torch.Tensor) -> torch.Tensor:
        out, last = self.layers(x, None if not initial else initial if len(initial) > 1 else initial[0])
        return out.square().sum() + sum(h.cos().sum() for h in (last if isinstance(last, tuple) else [last]))


CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "LSTM": ("LSTM", {}, False),
    "LSTM without bias, from given states": ("LSTM", {"bias": False, "num_layers": 2}, True),
    "LSTM in both directions, projected": ("LSTM", {"proj_size": 2, "bidirectional": True, "num_layers": 2}, True),
    "LSTM, batch first": ("LSTM", {"batch_first": True, "bidirectional": True, "num_layers": 2}, False),
    "GRU": ("GRU", {"num_layers": 2, "bidirectional": True}, True),
    "GRU without bias, batch first": ("GRU", {"bias": False, "batch_first": True}, False),
    "RNN": ("RNN", {"bidirectional": True}, False),
    "RNN with relu": ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bias": False}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_equal_pytorch(case: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, options, given = CASES[case]
    torch.manual_seed(0)
    module = Layers(kind, **options)
    x = torch.randn(2, 5, 3) if options.get("batch_first") else torch.randn(5, 2, 3)
    states = []
    if given:
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        sizes = [options.get("proj_size", 4), *([4] if kind == "LSTM" else [])]
        states = [torch.randn(count, 2, size).double() for size in sizes]
    graph = assert_equal_to_eager((module, (x.double(), *states), {}), 1e-12)
    assert caplog.text == ""
    found = Counter(str(operator.target) for operator in graph.operators)
    directions = len(module.layers.all_weights)
    assert found[f"hap.{kind.lower()}.default"] == found[f"hap.{kind.lower()}_backward.default"] == directions
    assert all(one is p for one, p in zip(module.layers._flat_weights, module.layers.parameters(), strict=True))


def test_one_sequence_without_a_batch() -> None:
    assert_equal_to_eager((Layers("LSTM"), (torch.randn(5, 3).double(),), {}), 1e-12)


def test_dropout_between_layers_is_hap_s_own() -> None:
    graph = hap.trace(Layers("GRU", num_layers=3, dropout=0.2), (torch.randn(5, 2, 3).double(),))
    assert [str(o.target) for o in graph.operators].count("hap.dropout.default") == 4  # two, and their backwards


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(3, 4), nn.GRUCell(4, 4)
        self.tanh, self.relu = nn.RNNCell(4, 4, bias=False), nn.RNNCell(4, 4, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.lstm(x)
        h, c = self.lstm(x, (h, c))
        return self.relu(self.tanh(self.gru(h, c)), c).square().sum()


def test_cells_equal_pytorch() -> None:
    torch.manual_seed(0)
    graph = assert_equal_to_eager((Cells().double(), (torch.randn(2, 3).double(),), {}), 1e-12)
    assert not [o.name for o in graph.operators if "split" in str(o.target)]


class Classifier(nn.Module):
    """CTC on one linear layer."""

    def __init__(self, constant_lengths: bool = False, **options: Any) -> None:
        super().__init__()
        self.fc, self.loss = nn.Linear(3, 5, dtype=torch.float64), nn.CTCLoss(**options)
        self.constant_lengths = constant_lengths

    def forward(self, x: torch.Tensor, y: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lengths = ((7, 6, 7, 5), [2, 3, 0, 3]) if self.constant_lengths else (inputs, targets)
        return self.loss(F.log_softmax(self.fc(x), -1), y, *lengths).sum()


@pytest.mark.parametrize(
    ("padded", "options"),
    [
        (True, {}),
        (True, {"reduction": "sum", "blank": 2}),
        (False, {"reduction": "none"}),
        (False, {"zero_infinity": True}),
        (False, {"constant_lengths": True}),
    ],
    ids=str,
)
def test_ctc_equals_pytorch(padded: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    # Two steps are too few for the last target.
    inputs = torch.tensor([7, 6, 7, 2 if options.get("zero_infinity") else 7])
    classes = torch.tensor([0, 1, 3, 4] if "blank" in options else [1, 2, 3, 4])
    y = classes[torch.randint(4, (4, 3) if padded else (8,))]
    args = (torch.randn(7, 4, 3).double(), y, inputs, torch.tensor([2, 3, 0, 3]))
    assert_equal_to_eager((Classifier(**options), args, {}), 1e-12)


def test_ctc_of_one_sequence() -> None:
    args = (torch.randn(7, 3).double(), torch.tensor([1, 2]), torch.tensor(7), torch.tensor(2))
    assert_equal_to_eager((Classifier(), args, {}), 1e-12)


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths)
        return self.lstm(packed)[1][0].sum()


def test_packed_sequences_are_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"test_recurrent.py:\d+: packed = pack_padded_sequence.*pad.*torch.gather"):
        hap.trace(Packs(), (torch.randn(5, 2, 3), torch.tensor([5, 3])))
