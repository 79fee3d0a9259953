"""What a forward inspects of its inputs' values in Python belongs to the trace; both ways equal one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hap
from hap import interpret
from hap.errors import TraceError
from tests import models
from tests.runtime import jobs
from tests.trace.comparison import assert_equal_to_eager


class Module(nn.Module):
    """Runs ``body(self, x, mask)``."""

    def __init__(self, body: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.table = torch.arange(3) > 0
        self.body = body

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.body(self, x, mask)


def branches(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.all():
        return self.fc(x).square().mean()
    return (self.fc(x) * mask[..., None]).square().mean()


def negates(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    padded = not bool(mask.all())
    scale = 2.0 if padded and (mask == 0).any() else 3.0
    return self.fc(x).square().mean() * scale


def keeps_the_tensor(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    either = mask.all() or mask.sum()
    return self.fc(x).square().mean() * either


def counts(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    longest = int(mask.sum(-1).max())
    return self.fc(x)[:, :longest].square().mean() * mask.sum().item()


def lists(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    pieces = [self.fc(row[:length]).sum() for row, length in zip(x, mask.sum(-1).tolist(), strict=True)]
    return torch.stack(pieces).square().mean()


def writes(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.clone()
    kept[0] = False
    view = kept.T
    view &= self.table[:, None]
    return self.fc(x).square().mean() * (1 + int(kept.sum()))


def writes_to_lists(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.long()
    torch._foreach_add_([kept[0], kept[1]], 1)
    kept, out = kept.sum(-1), (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    torch.min(kept, 0, keepdim=True, out=out)
    return self.fc(x).square().mean() * (int(kept.sum()) + int(out[0].sum()))


def writes_by_a_flag(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.long() * 2 - 1
    F.relu(kept, True)
    return self.fc(x).square().mean() * int(kept.sum())


def writes_statistics(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mean = mask.sum(0).to(x.dtype)
    F.batch_norm(torch.full((2, 3), -30.0, dtype=x.dtype), mean, torch.ones_like(mean), training=True)
    return self.fc(x).square().mean() * (2.0 if mean.sum() > -4 else 5.0)


def beside_vmap(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x = torch.vmap(lambda row: row.clone().mul_(2))(x)
    return self.fc(x).square().mean() * (2.0 if mask.all() else 5.0)


def mask(*lengths: int) -> torch.Tensor:
    """Rows of three that are kept from the left."""
    return torch.arange(3) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (branches, ([True], [False])),
        (negates, ([True], [False, True])),
        (keeps_the_tensor, ([True], [False])),
        (counts, ([3, 6], [3, 4])),
        (lists, ([[3, 3]], [[3, 1]])),
        (writes, ([2], [0])),
        (writes_to_lists, ([12, 6], [10, 4])),
        (writes_by_a_flag, ([6], [4])),
        (writes_statistics, ([True], [False])),
        (beside_vmap, ([True], [False])),
    ],
)
def test_both_ways_equal_one_device(body: Callable[..., torch.Tensor], values: tuple[list[Any], list[Any]]) -> None:
    module, x = Module(body).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    given = (mask(3, 3), mask(3, 1))
    state = torch.get_rng_state()
    graphs = [assert_equal_to_eager((module, (x, one), {}), 1e-12) for one in given]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(given[1], mask(3, 1))
    for graph, own, other in zip(graphs, given, reversed(given), strict=True):
        found = graph.inspections
        assert [one.value for one in found] == values[own is given[1]]
        assert [one.compute({"args.0": x, "args.1": own}) for one in found] == [one.value for one in found]
        assert "test_inspections.py:" in found[0].source
        # Its own call, and no other.
        with pytest.raises(TraceError, match=r"the forward inspects its inputs here: expected .* got"):
            interpret.bind(graph, module, (x, other))


def test_values_that_are_not_there() -> None:
    x = torch.randn(2, 3, 4, device="meta")
    with pytest.raises(TraceError, match=r'test_inspections\.py.*if mask\.all.*the values of "args\.1", .*the meta'):
        hap.trace(Module(branches), (x, mask(3, 3).to("meta")))
    # The others may be anywhere.
    assert hap.trace(Module(branches), (x, mask(3, 3))).inspections


def test_numbers_that_hardly_come_again() -> None:
    module = Module(lambda self, x, mask: self.fc(x).sum() * x.max().item())
    with pytest.raises(TraceError, match="a number depends on the values of tensors"):
        hap.trace(module, (torch.randn(2, 3, 4), mask(3, 3)))


def test_a_value_that_vmap_computes() -> None:
    module = Module(lambda self, x, mask: self.fc(x).sum() * (2 if torch.vmap(torch.sum)(mask).sum() > 4 else 1))
    with pytest.raises(TraceError, match=r"test_inspections\.py.*a value that torch\.func .* computes.*on whole"):
        hap.trace(module, (torch.randn(2, 3, 4), mask(3, 3)))


@pytest.mark.parametrize(
    ("scale", "advice"),
    [
        (lambda x, count: torch.equal(count, count + 1), r"write `\(a == b\)\.all\(\)`"),
        (lambda x, count: torch.allclose(count * 1.0, x.sum()), r"`torch\.isclose\(a, b\)\.all\(\)`"),
        (lambda x, count: f"{count}" == "3", r"as in `\(a == b\)\.all\(\)`, or wrap a whole number in int\(\)"),
        (lambda x, count: torch.is_nonzero(count), r"write `bool\(tensor\)`"),
        (lambda x, count: count.is_nonzero(), r"write `bool\(tensor\)`"),
        (lambda x, count: torch.zeros(count + 1).numel(), r"a shape .*: wrap the number in int\(\)"),
        (lambda x, count: x.narrow(0, 0, count - 2).numel(), r"wrap the number in int\(\)"),
        (lambda x, count: torch.arange(count + 2).numel(), r"wrap the number in int\(\)"),
        (lambda x, count: len(range(count)), r"wrap the number in int\(\)"),
        (lambda x, count: x.flatten()[x.flatten() > 0].numel(), r"a shape .*: keep every row"),
    ],
)
def test_what_to_write_instead(scale: Callable[..., Any], advice: str) -> None:
    module = Module(lambda self, x, mask: self.fc(x).sum() * (1 + scale(x, mask.sum())))
    with pytest.raises(TraceError, match=rf"test_inspections\.py.*{advice}"):
        hap.trace(module, (torch.randn(2, 3, 4), mask(2, 1)))


def test_plans_and_checks() -> None:
    module, x = Module(branches), torch.randn(2, 3, 4)
    plans = [hap.plan(module, devices=jobs.cluster(2), example_inputs=(x, mask(3, last))) for last in (3, 1)]
    assert plans[0].fingerprints.graph != plans[1].fingerprints.graph
    for last in (3, 1):
        assert hap.check(module, devices=jobs.cluster(2), example_inputs=(x, mask(3, last))).error < 1e-12


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_padded_batches_of_hugging_face(name: str, padded: bool) -> None:
    module, args, kwargs = getattr(models, name)()
    kept = torch.ones_like(kwargs["input_ids"])
    if padded:
        kept[0, -2:] = kept[2, -1:] = 0
    found = hap.check(
        module, devices=jobs.cluster(2), example_inputs=args, example_kwargs={**kwargs, "attention_mask": kept}
    )
    # The losses of GPT-2 and Llama are taken in float32.
    assert found.error < (1e-12 if name == "bert" else 1e-6)


def speech(**options: float) -> nn.Module:
    """A small Wav2Vec 2.0 without dropout."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    settings: dict[str, Any] = {
        "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "conv_dim": (8,), "conv_stride": (5,), "conv_kernel": (6,), "num_feat_extract_layers": 1, "layerdrop": 0.0,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "mask_time_length": 2,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "activation_dropout": 0.0,
        "final_dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    return Wav2Vec2ForCTC(Wav2Vec2Config(**{**settings, **options})).train()


def test_labels_of_hugging_face_that_are_compared_with_the_vocabulary() -> None:
    module, sound = speech(), torch.randn(3, 60)
    labels = torch.tensor([[1, 2, 2, 8], [3, -100, 4, -100], [0, 5, 0, 6]])  # 0 is blank, which does not count
    heard = (torch.arange(60) < torch.tensor([60, 45, 60])[:, None]).long()
    for kwargs in ({"labels": labels}, {"labels": labels, "attention_mask": heard}):
        graph = assert_equal_to_eager((module, (sound,), kwargs), 1e-5)
        assert [(one.source.split(": ")[-1], one.value) for one in graph.inspections][:1] == [
            ("if labels is not None and labels.max() >= self.config.vocab_size", False)
        ]
        found = hap.check(module, devices=jobs.cluster(2), example_inputs=(sound,), example_kwargs=kwargs)
        assert found.error < 1e-5
        assert found.replicated == ()
    with pytest.raises(TraceError, match=r"the forward raises ValueError\('Label values must be <= vocab_size: 9'\)"):
        hap.trace(module, (sound,), {"labels": labels + 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_time_prob": 0.4}, r"modeling_wav2vec2\.py.*NumPy draws the steps to mask.*pass `mask_time_indices`"),
        ({"layerdrop": 0.1}, r"modeling_wav2vec2\.py.*a random number decides whether a layer runs: set `layerdrop`"),
    ],
)
def test_random_decisions_of_hugging_face_are_refused_with_what_to_do(options: dict[str, float], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        hap.trace(speech(**options), (torch.randn(3, 60),), {"labels": torch.ones(3, 2, dtype=torch.int64)})
