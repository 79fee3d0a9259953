"""Modules that take and return values in every structure that people use."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.trace.written import Call, floats, module


@dataclasses.dataclass
class Batch:
    """Inputs of one step; ``scale`` is no tensor."""

    x: Tensor
    labels: Tensor
    scale: float = 1.0
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Scores:
    """An output."""

    loss: Tensor
    logits: Tensor
    parts: tuple[Tensor, ...] = ()
    note: str = "none"


class Pair(NamedTuple):
    """An output or input of two."""

    left: Tensor
    right: Tensor


class Record(dict[str, Any]):
    """A dictionary of a class of one's own."""


class Classifier(nn.Module):
    """Gives its loss, logits and hidden state to ``form``, which makes the output."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.form = form

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        hidden = self.fc(x).tanh()
        logits = self.head(hidden)
        return self.form(F.cross_entropy(logits, labels), logits, hidden)


def classified(form: Any) -> Any:
    return lambda: Call(Classifier(form), (floats(5, 4), torch.tensor([0, 1, 2, -100, 1])))


def several(loss: Tensor, logits: Tensor, hidden: Tensor) -> Any:
    named = collections.defaultdict(list)
    named["hidden"] = [hidden, {"again": hidden * 2}]
    return collections.OrderedDict(
        pair=Pair(logits, hidden), named=named, record=Record(n=3, on=True, text="t", nothing=None, half=0.5)
    )


def duplicate(loss: Tensor, logits: Tensor, hidden: Tensor) -> Any:
    return {"a.b": logits, "a": {"b": hidden, 0: hidden * 2, "0": hidden * 3}, "": loss * 2}


class Takes(nn.Module):
    """Reads its tensors from ``read(inputs)``."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.read = read

    def forward(self, inputs: Any) -> Tensor:
        x, labels = self.read(inputs)
        return F.cross_entropy(self.fc(x), labels)


LABELS = torch.tensor([0, 1, 2, -100, 1])


def by_name(inputs: Any) -> Any:
    return inputs["x"], inputs["labels"]


def by_attribute(inputs: Any) -> Any:
    return inputs.x, inputs.labels


def configured(
    self: Any, x: Tensor, n: int, on: bool, name: str, factor: float, other: None = None, *, dtype: torch.dtype,
    sizes: tuple[int, ...] = (),
) -> Tensor:  # fmt: skip
    for _ in range(n):
        x = self.fc(x).relu() if on else self.fc(x)
    x = {"double": 2 * x, "half": x / 2}[name] * factor
    return x.to(dtype).reshape(sizes).square().mean()


def keywords(self: Any, *, x: Tensor, mask: Tensor | None = None, **rest: Tensor) -> Tensor:
    x = self.fc(x)
    x = x if mask is None else x.masked_fill(mask, 0.0)
    return (x * rest["weight"]).square().mean()


def variadic(self: Any, *rows: Tensor) -> Tensor:
    return torch.stack([self.fc(row) for row in rows]).square().mean()


ENTRIES: dict[str, Any] = {
    "a tuple out": classified(lambda loss, logits, hidden: (loss, logits, hidden)),
    "outputs without a loss": classified(lambda loss, logits, hidden: (logits, [hidden])),
    "two losses": classified(lambda loss, logits, hidden: {"first": loss, "second": hidden.square().mean()}),
    "a dict out": classified(lambda loss, logits, hidden: {"loss": loss, "logits": logits}),
    "a dataclass out": classified(lambda loss, logits, hidden: Scores(loss, logits, (hidden, hidden.detach()), "note")),
    "a named tuple out": classified(lambda loss, logits, hidden: Pair(loss, logits)),
    "a ModelOutput out": classified(
        lambda loss, logits, hidden: SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=(hidden,))
    ),
    "nested containers out": classified(several),
    "a user's mapping out": classified(lambda loss, logits, hidden: collections.UserDict(loss=loss, logits=logits)),
    "an encoding out": classified(lambda loss, logits, hidden: BatchEncoding({"loss": loss, "logits": logits})),
    "a mapping proxy out": classified(
        lambda loss, logits, hidden: types.MappingProxyType({"loss": loss, "logits": logits})
    ),
    "paths that meet": classified(duplicate),
    "a dict in": lambda: Call(Takes(by_name), ({"x": floats(5, 4), "labels": LABELS},)),
    "an ordered dict in": lambda: Call(Takes(by_name), (collections.OrderedDict(x=floats(5, 4), labels=LABELS),)),
    "a user's mapping in": lambda: Call(Takes(by_name), (collections.UserDict(x=floats(5, 4), labels=LABELS),)),
    "an encoding in": lambda: Call(Takes(by_name), (BatchEncoding({"x": floats(5, 4), "labels": LABELS}),)),
    "an encoding's attributes in": lambda: Call(
        Takes(by_attribute), (BatchEncoding({"x": floats(5, 4), "labels": LABELS}),)
    ),
    "a dict of a class of one's own in": lambda: Call(Takes(by_name), (Record(x=floats(5, 4), labels=LABELS),)),
    "a mapping proxy in": lambda: Call(
        Takes(by_name), (types.MappingProxyType({"x": floats(5, 4), "labels": LABELS}),)
    ),
    "a dataclass in": lambda: Call(Takes(by_attribute), (Batch(floats(5, 4), LABELS, 0.5, {"y": floats(2)}),)),
    "a frozen dataclass in": lambda: Call(
        Takes(lambda scores: (scores.logits, scores.loss)), (Scores(LABELS, floats(5, 4), (floats(2),)),)
    ),
    "a named tuple in": lambda: Call(Takes(lambda pair: (pair.left, pair.right)), (Pair(floats(5, 4), LABELS),)),
    "a ModelOutput in": lambda: Call(
        Takes(lambda output: (output.logits, output.loss)),
        (SequenceClassifierOutput(loss=LABELS, logits=floats(5, 4)),),
    ),
    "containers inside of containers in": lambda: Call(
        Takes(lambda inputs: (inputs["batches"][0].x, inputs["batches"][1].left)),
        ({"batches": [Batch(floats(5, 4), LABELS), Pair(LABELS, floats(1))]},),
    ),
    "inputs that are no tensors": lambda: Call(
        module(configured, fc=nn.Linear(4, 4)),
        (floats(6, 4), 2, True, "double", 0.5, None),
        {"dtype": torch.float64, "sizes": (3, 8)},
    ),
    "keywords": lambda: Call(
        module(keywords, fc=nn.Linear(4, 4)),
        kwargs={"weight": floats(4), "mask": floats(5, 1) > 1, "x": floats(5, 4)},
    ),
    "any number of arguments": lambda: Call(module(variadic, fc=nn.Linear(4, 4)), (floats(4), floats(4), floats(4))),
    "one tensor twice": lambda: Call(
        module(lambda self, x, y: (self.fc(x) * y).square().mean(), fc=nn.Linear(4, 4)), (floats(5, 4),) * 2
    ),
    "inputs that require grad": lambda: Call(
        module(lambda self, x, y: (self.fc(x) * y).square().mean(), fc=nn.Linear(4, 4)),
        (floats(5, 4, requires_grad=True), floats(4, requires_grad=True)),
    ),
}
