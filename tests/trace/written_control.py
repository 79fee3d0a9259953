"""Modules with Python, autograd and in-place operators in their forward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.trace.written import Call, floats, linear, module


class Configured(nn.Module):
    """Chooses its layers from a configuration at each call."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.activation = {"relu": F.relu, "gelu": F.gelu}[config["activation"]]

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index in self.config["skip"]:
                continue
            match self.config.get("residual"):
                case True:
                    x = x + self.activation(layer(x))
                case _:
                    x = self.activation(layer(x))
        return x.square().mean() if self.config.get("reduction", "mean") == "mean" else x.sum()


class Padded(nn.Module):
    """Inspects its padding mask in Python, as older attention code does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 12)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.all():
            mask = None
        q, k, v = self.fc(x).chunk(3, -1)
        bias = None if mask is None else torch.where(mask, 0.0, -math.inf)[:, None, :].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).square().mean()


class Checkpointed(nn.Module):
    """Activation checkpointing with dropout off."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)])
        self.first, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
        return x.square().mean()


def without_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = self.fc(x).abs().amax(0)
        with torch.enable_grad():
            pass
    targets = self.fc(x).detach()
    return (self.fc(x + 1) / scale - targets).square().mean()


@torch.no_grad()
def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.std(0)


def decorated(self: Any, x: Tensor) -> Tensor:
    mean, std = statistics(self.fc(x))
    return ((self.fc(x) - mean) / std).pow(4).mean()


def in_place(self: Any, x: Tensor) -> Tensor:
    h = F.relu(self.fc(x), inplace=True)
    h = h.clone()
    h[:, 0] = 1.0
    h[1:3, 1:] *= 2
    h[x > 1] = 0.5
    h.masked_fill_(x < -1, -1.0)
    h.add_(x).mul_(0.5).clamp_(-3, 3)
    out = torch.zeros_like(h)
    out[:, 1:] = h[:, :-1]
    out[0].copy_(h[-1])
    out.transpose(0, 1)[2].zero_()
    return out.square().mean() + h.sum()


def by_index(self: Any, x: Tensor, index: Tensor) -> Tensor:
    h = self.fc(x)
    out = x.new_zeros(7, 4)
    out.index_add_(0, index, h)
    out.scatter_(1, (index % 4)[:, None], 1.0)
    out[index] += h
    return out.square().sum() + torch.zeros(4, dtype=h.dtype).scatter_add(0, index % 4, h[:, 0]).square().sum()


class Clipped(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() < ctx.bound), None


class Halved(torch.autograd.Function):
    """Two results, one without gradient; the context is set up apart."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x > y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grads[0] * y / 2, grads[0] * x / 2


def own_functions(self: Any, x: Tensor) -> Tensor:
    h = Clipped.apply(self.fc(x), 1.0)
    product, larger = Halved.apply(h, self.fc(x + 1))
    return (product * larger).square().mean()


def half(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = self.fc(x)
        with torch.autocast("cpu", enabled=False):
            h = self.other(h.to(self.other.weight.dtype))
    return h.square().mean()


def hooked_activation(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    h.register_hook(lambda grad: grad * 2)
    return h.square().mean()


def mapped(self: Any, x: Tensor) -> Tensor:
    return torch.vmap(self.fc)(x).square().mean()


def comprehensions(self: Any, x: Tensor) -> Tensor:
    rows = {i: self.fc(row) for i, row in enumerate(x.unbind(0))}
    parts = [a * b for a, b in zip(rows.values(), reversed(list(rows.values())), strict=True)]
    first, *rest = parts
    total = first
    for part in rest:
        total = total + part
    return sum((p.sum() for p in parts), start=total.square().sum())


def tries(self: Any, x: Tensor) -> Tensor:
    try:
        x = self.missing(x)
    except AttributeError:
        x = self.fc(x)
    assert x.dim() == 2, f"expected a matrix, got {x.shape}"
    return x.square().mean()


def functional(self: Any, x: Tensor) -> Tensor:
    parameters = {name: 2 * value for name, value in self.fc.named_parameters()}
    return torch.func.functional_call(self.fc, parameters, (x,)).square().mean()


def einsums(self: Any, x: Tensor) -> Tensor:
    q = self.fc(x).unflatten(-1, (2, 2))
    return torch.einsum("ihd,jhd->hij", q, q).softmax(-1).square().mean()


def gaussian(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    whole = F.gaussian_nll_loss(h, x, x**2, full=True)
    whole = whole + F.gaussian_nll_loss(h, x, h[:, 0].abs(), reduction="sum") + F.gaussian_nll_loss(h, x, 0.5)
    one_for_all = F.gaussian_nll_loss(h, x, h[:1].abs(), reduction="none").mean()
    h, x = h.view(-1, 2, 2), x.view(-1, 2, 2)
    return whole + one_for_all + F.gaussian_nll_loss(h, x, h[:, :1].exp()) + F.gaussian_nll_loss(h, x, h[..., :1].exp())


def algebra(self: Any, x: Tensor) -> Tensor:
    weight = self.fc.weight @ self.fc.weight.mT + torch.eye(4, dtype=x.dtype)
    solved = torch.linalg.solve(weight, x.mT)
    return solved.square().mean() + torch.linalg.inv(weight).trace() + torch.linalg.cholesky(weight).sum()


def causal(size: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(size)


def encodes(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Masks without a hint that they are causal: one made here, one given."""
    x = self.encoder(x, mask=causal(x.shape[1]).to(x.dtype))
    loss: Tensor = self.encoder(x, mask=mask.to(x.dtype)).square().mean()
    return loss


def decodes(self: Any, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = self.both(x, y, tgt_mask=causal(y.shape[1]).to(y.dtype)).square().mean()
    return loss


def diverges(self: Any, x: Tensor) -> Tensor:
    """Divergences of two kinds of distributions."""
    mean, scale = self.fc(x).chunk(2, -1)
    prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    loss: Tensor = distributions.kl_divergence(distributions.Normal(mean, scale.exp()), prior).sum()
    choice, other = distributions.Categorical(logits=mean), distributions.Categorical(logits=scale)
    return loss + distributions.kl.kl_divergence(choice, other).sum()


ENTRIES: dict[str, Any] = {
    "a configuration": lambda: Call(Configured(activation="gelu", skip=(1,), residual=True), (floats(5, 4),)),
    "another configuration": lambda: Call(Configured(activation="relu", skip=()), (floats(5, 4),)),
    "no padding mask": lambda: Call(Padded(), (floats(3, 5, 4), None)),
    "checkpoints": lambda: Call(Checkpointed(False), (floats(5, 4),)),
    "reentrant checkpoints": lambda: Call(Checkpointed(True), (floats(5, 4),)),
    "no_grad and detach": linear(without_gradients),
    "a function under no_grad": linear(decorated),
    "in place": linear(in_place),
    "in place by index": linear(by_index, lambda: floats(5, 4), lambda: torch.tensor([0, 3, 3, 6, 1])),
    "autograd functions of one's own": linear(own_functions),
    "autocast inside": lambda: Call(module(half, fc=nn.Linear(4, 4), other=nn.Linear(4, 4)), (floats(5, 4),)),
    "a hook on an activation": linear(hooked_activation),
    "vmap": linear(mapped),
    "comprehensions": linear(comprehensions),
    "exceptions": linear(tries),
    "functional calls": linear(functional),
    "einsum": linear(einsums),
    "a loss that checks its variances": linear(gaussian),
    "linear algebra": linear(algebra),
    "an encoder with causal masks": lambda: Call(
        module(encodes, encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 1)),
        (floats(3, 4, 8), causal(4)),
    ),
    "nn.Transformer with a causal mask": lambda: Call(
        module(decodes, both=nn.Transformer(8, 2, 1, 1, 8, 0.0, batch_first=True)), (floats(3, 4, 8), floats(3, 5, 8))
    ),
    "divergences of distributions": linear(diverges),
    "compiled submodules": lambda: Call(
        module(lambda self, x: self.fc(x).square().mean(), fc=torch.compile(nn.Linear(4, 4), backend="eager")),
        (floats(5, 4),),
    ),
}
