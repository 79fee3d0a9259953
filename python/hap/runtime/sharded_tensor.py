"""An output that stays where it was made: each rank holds its piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd.function import once_differentiable

from hap.errors import HapError
from hap.runtime.collectives import all_reduce, re_split, slice_share
from hap.runtime.local_inputs import LocalInput, share_layout

if TYPE_CHECKING:
    from hap.runtime.group import Group
    from hap.runtime.placing import Layout


_USE = "take its .local, this rank's piece, or .full_tensor(), which gathers the whole"


class ShardedTensor:
    """A tensor of which each rank holds a piece: nothing is gathered unless it is asked for.

    **Beside a loss** it is for metrics, and no gradient goes back through it: where one device would have recorded one,
    a ``backward`` that reaches it raises :class:`HapError`. Use it under ``torch.no_grad()``, or ``detach()`` it.

    **With** ``hap.parallelize(..., sharded_outputs=True)`` gradients go back through it. A loss is then the sum of the
    ranks' parts, each of them computed from :attr:`local`, and :meth:`total` adds them up::

        scores = model(x)
        part = F.cross_entropy(scores.local, scores.share(y), reduction="sum")
        loss = scores.total(part) / len(y)
        loss.backward()

    That is right wherever the output lies, for shares of any size, empty ones included, and where it is whole. A mean
    of the local piece would not be: shares are uneven, and an empty one has no mean. Sum up, and divide by what counts
    everywhere: ``len(y)``, ``scores.shape[0]``, or ``scores.total((labels != -100).sum())`` where labels are ignored.
    Each rank has to call ``backward()`` of a loss that depends on its ``local``, also where that is empty.

    What is computed from :meth:`full_tensor` is computed by all ranks alike, and is no part of a sum: add it to the
    loss behind :meth:`total`.

    Args:
        local: this rank's piece.
        layout: how the tensor lies on the ranks.
        name: path in the module's output, for errors.
        group: the ranks.
        refused: whether one device would have recorded a gradient that there is none of.
        units: samples of each rank's inputs, where these came as shares.
    """

    def __init__(
        self,
        local: torch.Tensor,
        layout: Layout,
        name: str,
        group: Group,
        *,
        refused: bool = False,
        units: tuple[int, ...] | None = None,
    ) -> None:
        self.name = name
        self._local = local
        self._layout = layout
        self._group = group
        self._refused = refused
        self._units = units

    @property
    def local(self) -> torch.Tensor:
        """This rank's piece; the whole tensor where :attr:`replicated`."""
        return self._refusing(self._local)

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        return torch.Size(self._layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._local.dtype

    @property
    def device(self) -> torch.device:
        """Where this rank's piece is."""
        return self._local.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients go back through it."""
        return self._local.requires_grad

    @property
    def replicated(self) -> bool:
        """Whether each rank holds the whole tensor."""
        return self._layout.everywhere

    @property
    def axis(self) -> str | None:
        """Name of the axis that it is split along, as plans have it; ``None`` where :attr:`replicated`."""
        return self._layout.axis

    @property
    def dim(self) -> int | None:
        """The dimension in which that axis lies."""
        return None if self._layout.along is None else self._layout.along.dim

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Where in :attr:`dim` of the whole this rank's piece lies: the start and length of each stretch, in order.

        One stretch, but where the axis is not the outermost of its dimension; none where the piece is empty.
        """
        along = self._layout.along
        return () if along is None else tuple((at, count) for at, _, count in along.stretches(self._group.rank))

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Size of the whole tensor."""
        return self.shape if dim is None else self.shape[dim]

    def full_tensor(self) -> torch.Tensor:
        """The whole tensor on every rank. A collective: all ranks must call it.

        Where :attr:`requires_grad`, so does the result. Each rank's piece then takes its part of the gradient, which
        all ranks must have computed alike, of the whole loss.
        """
        if self.replicated or self._group.size == 1:
            return self.local
        if self.requires_grad and torch.is_grad_enabled():
            return _Gathered.apply(self._local, self)  # type: ignore[no-any-return, no-untyped-call]
        return self._refusing(self._gathered())

    def share(self, value: torch.Tensor | LocalInput) -> torch.Tensor:
        """This rank's part of a tensor that is as large as this one in :attr:`dim`, such as labels.

        Args:
            value: the whole tensor, the same on all ranks; or this rank's share of it, by ``model.local_inputs`` or
                :class:`hap.DistributedSampler`, of a call whose inputs were shares, too. Then all ranks must call.

        Raises:
            HapError: the value does not lie beside this tensor.
        """
        if isinstance(value, LocalInput):
            return self._share_of_samples(value.tensor)
        if not isinstance(value, torch.Tensor):
            raise HapError(f"{self._what}.share: expected a tensor, got {type(value).__name__}")
        layout, rank = self._layout, self._group.rank
        if layout.along is None:
            # An idle rank computes nothing of what is whole on the others.
            return value[:0] if rank in layout.idle and value.dim() else value
        self._check_beside(value.shape)
        return slice_share(value, along=layout.along, rank=rank)

    def _share_of_samples(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's part of what the ranks bring by samples."""
        if self._units is None:
            raise HapError(
                f"{self._what}.share: got a share of a batch, but the inputs of this call were global: pass all "
                "of them through model.local_inputs, or none"
            )
        rank = self._group.rank
        if not share.dim() or share.shape[0] != self._units[rank]:
            raise HapError(
                f"{self._what}.share: expected a share of {self._units[rank]} samples, as the inputs of this call, got "
                f"one of shape {list(share.shape)}"
            )
        given = share_layout((sum(self._units), *share.shape[1:]), self._units)
        target = self._layout.along
        assert given.along is not None
        if target is not None and target[:2] == given.along[:2]:
            self._check_beside(given.shape)
            shape = target.shape(given.shape, rank)
            return re_split(share, name=self._name, shape=shape, source=given.along, target=target, group=self._group)
        return self.share(given.gather(share, f"{self._name}.share", self._group))

    def _check_beside(self, shape: Sequence[int]) -> None:
        """That a whole tensor of this shape is as large as this one where this is split."""
        dim = self.dim
        assert dim is not None
        if len(shape) <= dim or shape[dim] != self.shape[dim]:
            raise HapError(
                f'{self._what}.share: it is split along its dimension {dim} (axis "{self.axis}") of size '
                f"{self.shape[dim]}, but the whole of the value has the shape {list(shape)}: expected that size in "
                "that dimension; what a rank brings of a batch comes through model.local_inputs"
            )

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what the ranks have computed from their pieces, of equal shapes, on every rank. A collective.

        Where this tensor is whole, so is what they have computed, and nothing is added. The gradient of the sum is that
        of each part.

        Raises:
            HapError: ``part`` is no tensor.
        """
        if not isinstance(part, torch.Tensor):
            raise HapError(f"{self._what}.total: expected a tensor, got {type(part).__name__}")
        if self.replicated or self._group.size == 1:
            return part
        return _Total.apply(part, self)  # type: ignore[no-any-return, no-untyped-call]

    def item(self) -> float:
        """The value of an output of one element, as a Python number. A collective, as :meth:`full_tensor`.

        Raises:
            HapError: it has more elements, or none.
        """
        if self.shape.numel() != 1:
            raise HapError(f"{self._what}.item: expected one element, got the shape {tuple(self.shape)}: {_USE}")
        return self._gathered().item()

    def _gathered(self) -> torch.Tensor:
        return self._layout.gather(self._local.detach(), self._name, self._group)

    def _sum(self, part: torch.Tensor) -> torch.Tensor:
        name = f"{self._name}.total"
        if self._layout.along is not None:
            return all_reduce(part.detach(), name=name, group=self._group)
        # Whole on all ranks but the idle ones.
        return replace(self._layout, shape=tuple(part.shape)).gather(part.detach(), name, self._group)

    def _refusing(self, value: torch.Tensor) -> torch.Tensor:
        return refuse_gradient(value, self.name) if self._refused else value

    def __getattr__(self, name: str) -> Any:
        """Raises; says what to use in the place of a tensor's attribute."""
        hint = f": {_USE}" if hasattr(torch.Tensor, name) else ""
        raise AttributeError(f'a hap.ShardedTensor has no attribute "{name}"{hint}')

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Raises: PyTorch's functions take no part of a tensor for the whole."""
        name = getattr(function, "__name__", str(function))
        raise HapError(f"{name} was called with a hap.ShardedTensor: {_USE}")

    @property
    def _name(self) -> str:
        return self.name or "output"

    @property
    def _what(self) -> str:
        return f'output "{self.name}"' if self.name else "output"

    def __repr__(self) -> str:
        held = "whole" if self.replicated else f"{tuple(self._local.shape)} of it on rank {self._group.rank}"
        return (
            f"ShardedTensor({self.name or 'output'}: {tuple(self.shape)}, {self.dtype}, {held}; full_tensor() gathers)"
        )


class _Total(torch.autograd.Function):
    """The sum of the ranks' parts; its gradient, the same on all of them, is that of each part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, output: ShardedTensor) -> torch.Tensor:
        return output._sum(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class _Gathered(torch.autograd.Function):
    """The whole of the ranks' pieces; of its gradient, the same on all of them, each piece takes its own."""

    @staticmethod
    def forward(ctx: Any, piece: torch.Tensor, output: ShardedTensor) -> torch.Tensor:
        ctx.layout, ctx.rank = output._layout, output._group.rank
        return output._gathered()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.layout.share(gradient, ctx.rank), None


def refuse_gradient(value: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor ``value`` as an output that requires grad, whose backward raises :class:`HapError` naming ``name``.

    A detached output would leave its part of a loss without a gradient, and nobody would know.
    """
    anchor = torch.empty(0, requires_grad=True)
    return _RefuseGradient.apply(anchor, value, name)  # type: ignore[no-any-return, no-untyped-call]


class _RefuseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise HapError(
            f'the output "{ctx.name}" stands beside a loss (an output called "loss", or a scalar) and carries no '
            "gradient: compute all of the loss inside the module, or call hap.parallelize with sharded_outputs=True, "
            "or return this output without a scalar beside it. For metrics use it under torch.no_grad(), or detach() "
            "it."
        )
