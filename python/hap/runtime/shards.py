"""Replaces a module's parameters and buffers by this rank's pieces, in place."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hap.errors import HapError
from hap.runtime.group import Group
from hap.runtime.optimisers import is_shard, mark
from hap.runtime.placing import Layout
from hap.runtime.requests import Broadcasts, in_place


def named_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, each under all of its names."""
    state: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    state.update(module.named_buffers(remove_duplicate=False))
    return state


def names_of(module: nn.Module) -> dict[int, tuple[list[str], torch.Tensor]]:
    """Parameters and buffers by identity, each with all of its names."""
    found: dict[int, tuple[list[str], torch.Tensor]] = {}
    for name, tensor in named_state(module).items():
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return found


def release(module: nn.Module) -> None:
    """Detach plain tensor attributes from the graphs that made them, which would hold parameters.

    Such as the weight that the hook of ``torch.nn.utils.weight_norm`` leaves for the next call to replace.
    """
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                part.__dict__[name] = value.detach()


def check_replaceable(module: nn.Module, layouts: dict[str, Layout], rank: int) -> None:
    """Raise where a parameter could not be replaced in place, before anything is changed."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            raise HapError(f'"{name}" has a gradient of its whole size: call zero_grad() before hap takes the module')
        layout = layouts.get(name)
        if layout is not None and layout.cut(rank):
            _check_unheld(name, parameter)


def _check_unheld(name: str, parameter: nn.Parameter) -> None:
    """Raise where ``torch.utils.swap_tensors`` would.

    A swap on trial would leave its mark: it makes the node that accumulates the gradient raise in a later backward.
    """
    if weakref.getweakrefs(parameter):
        raise _held(name, "there is a weak reference to it")
    count = parameter._use_count()  # type: ignore[attr-defined]
    if count == 2 and parameter.requires_grad:
        # Asking makes the node where there is none, which then counts as a third use.
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        count = parameter._use_count() - 1  # type: ignore[attr-defined]
        del node
    if count > 1:
        raise _held(name, "a graph or another tensor refers to it")


def _held(name: str, reason: object) -> HapError:
    return HapError(
        f'"{name}" cannot become a shard in place ({reason}): something still holds it, such as the graph of an '
        "earlier call (delete its loss and outputs), or a weak reference. Call hap.parallelize before the first "
        "forward."
    )


def place(module: nn.Module, layouts: dict[str, Layout], group: Group) -> None:
    """Give every rank its pieces of rank 0's parameters and buffers; tensors without a layout stay whole.

    Ranks start equal whatever they held before, as in DistributedDataParallel. What is on the meta device stays there.
    A collective.

    Raises:
        HapError: a parameter cannot be replaced, for example because a graph of an earlier call is still alive.
    """
    for names, tensor in names_of(module).values():
        if not tensor.is_meta:
            whole = tensor.detach()
            if group.size > 1:
                whole = whole.contiguous()
                broadcast(whole, names[0], group)
            layout = layout_of(names, layouts)
            if layout is not None and layout.cut(group.rank) and group.size > 1:
                # A copy, so that nothing keeps the whole tensor in memory.
                whole = layout.share(whole, group.rank)
            put_piece(module, names[0], tensor, whole, layout, group)


def layout_of(names: Sequence[str], layouts: Mapping[str, Layout]) -> Layout | None:
    """How a tensor with these names lies."""
    return next((layouts[name] for name in names if name in layouts), None)


def broadcast(whole: torch.Tensor, name: str, group: Group) -> None:
    """Make a tensor on all ranks what it is on rank 0, in place. A collective."""
    if whole.numel() and group.size > 1:
        group.run(f'broadcast of "{name}"', in_place(Broadcasts(((0, whole),)), whole))


def put_piece(
    module: nn.Module, name: str, tensor: torch.Tensor, piece: torch.Tensor, layout: Layout | None, group: Group
) -> None:
    """Let a parameter or buffer be ``piece``, which is this rank's.

    Parameters keep their identity (``torch.utils.swap_tensors``), so that optimisers made earlier stay valid.
    """
    split = layout is not None and layout.along is not None and group.size > 1
    if isinstance(tensor, nn.Parameter):
        if tensor.is_meta or piece.shape != tensor.shape or (split and not is_shard(tensor)):
            _swap(name, tensor, nn.Parameter(piece, requires_grad=tensor.requires_grad))
        elif piece.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(piece)
        if group.size > 1:
            first = 0 if layout is None else layout.first
            mark(tensor, name, sharded=split, counted=split or group.rank == first)
    elif tensor.is_meta or piece.shape != tensor.shape:
        _set_buffer(module, tensor, piece)
    elif piece.data_ptr() != tensor.data_ptr():
        tensor.copy_(piece)


def _swap(name: str, parameter: nn.Parameter, piece: nn.Parameter) -> None:
    try:
        torch.utils.swap_tensors(parameter, piece)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _held(name, error) from error


def _set_buffer(module: nn.Module, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a buffer of another shape in the place of ``old``, under all of its names."""
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is old:
                part._buffers[name] = new
