"""An output that stays where it was made: each rank holds its piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hap.errors import HapError

if TYPE_CHECKING:
    from hap.runtime.group import Group
    from hap.runtime.placing import Layout


class ShardedTensor:
    """A tensor of which each rank holds a piece.

    What a parallel module returns beside its loss: nothing is gathered unless it is asked for. It is for metrics: no
    gradient goes back through it. Where one device would have recorded a gradient, a ``backward`` that reaches it
    raises :class:`HapError`; use it under ``torch.no_grad()``, or ``detach()`` it.

    Args:
        local: this rank's piece, detached.
        layout: how the tensor lies on the ranks.
        name: path in the module's output, for errors.
        group: the ranks.
        differentiable: whether one device would have recorded a gradient.
    """

    def __init__(
        self, local: torch.Tensor, layout: Layout, name: str, group: Group, *, differentiable: bool = False
    ) -> None:
        self.name = name
        self._local = local
        self._layout = layout
        self._group = group
        self._differentiable = differentiable

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
        """The whole tensor on every rank. A collective: all ranks must call it."""
        return self._refusing(self._layout.gather(self._local, self.name, self._group))

    def _refusing(self, value: torch.Tensor) -> torch.Tensor:
        return refuse_gradient(value, self.name) if self._differentiable else value

    def __repr__(self) -> str:
        held = "whole" if self.replicated else f"{tuple(self._local.shape)} of it on rank {self._group.rank}"
        return (
            f"ShardedTensor({self.name or 'output'}: {tuple(self.shape)}, {self.dtype}, {held}; full_tensor() gathers)"
        )


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
            "gradient: compute all of the loss inside the module, or return this output without a scalar beside it. "
            "For metrics use it under torch.no_grad(), or detach() it."
        )
