"""Modules on the meta device: each rank makes its pieces, and no rank the whole model.

Values come from a checkpoint (:mod:`hap.runtime.weights`), else from the module's own initialisation, on rank 0 and in
parts: submodules that are small beside a rank's share, with all that they hold. What a module holds is initialised
before the module itself, as constructors do, and so random numbers are those of constructors that only initialise.

A rank holds its pieces and one part more. On rank 0 that is the largest part, whole, since a stream of random numbers
can only be drawn from its beginning; what the initialisation itself allocates comes on top. On the others it is the
largest tensor, whole; from a checkpoint the rank's largest piece. A part is the tensors of one module, or a submodule
no larger than the largest tensor or :data:`SMALL` of the smallest share, or one whose initialisation also writes what
its submodules hold.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import methodcaller
from typing import Any, cast

import torch
from torch import nn

from hap.errors import HapError
from hap.runtime.agree import Control
from hap.runtime.group import Group
from hap.runtime.placing import Layout
from hap.runtime.shards import broadcast, layout_of, named_state, names_of, put_piece
from hap.runtime.weights import Weights

SMALL = 1 / 32
"""A submodule of at most this part of the smallest share is initialised at once, or as large as the largest tensor."""
JOINT = 1 / 2
"""One whose initialisation also writes what its submodules hold may be this part of the whole: a layer of a few."""
_UNTOUCHED = 0xFF
# Every byte of what an initialisation has not written: NaN in floating point, -1 in whole numbers.
_ALIGNED = 64
# Bytes between the starts of tensors that lie in one memory.
_LOOKED_AT = 1 << 20
# Elements that are looked at together.


def check_sources(module: nn.Module, weights: Weights | None) -> None:
    """Check that every tensor on the meta device will get values, and that a checkpoint holds the module's tensors.

    Raises:
        HapError: names the tensor or the submodule, and what to do.
    """
    names = names_of(module)
    held = {} if weights is None else weights.shapes
    if weights is not None:
        _check_weights(names, weights)
    for path, part in module.named_modules():
        for key, tensor in _tensors(part, deep=False).items():
            aliases = names[key][0]
            if tensor.is_meta and not held.keys() & set(aliases) and _initialiser(module, path) is None:
                raise HapError(
                    f'"{aliases[0]}" is on the meta device, and {_named(part, path)} has no reset_parameters() to '
                    "initialise it: write one, give hap.parallelize weights=, or materialise the module first by "
                    "module.to_empty(device=...) and its initialisation. Planning alone (hap.plan) needs no values"
                )


def _check_weights(names: dict[int, tuple[list[str], torch.Tensor]], weights: Weights) -> None:
    more = sorted(weights.shapes.keys() - {name for aliases, _ in names.values() for name in aliases})
    if more:
        raise HapError(f'{weights.path} holds "{more[0]}", which the module does not have')
    for aliases, tensor in names.values():
        found = [name for name in aliases if name in weights.shapes]
        if not found and isinstance(tensor, nn.Parameter):
            raise HapError(f'{weights.path} does not hold "{aliases[0]}", a parameter of the module')
        for name in found:
            if weights.shapes[name] != tuple(tensor.shape):
                raise HapError(
                    f'{weights.path}: "{name}" has the shape {weights.shapes[name]} there, and '
                    f"{tuple(tensor.shape)} in the module"
                )


def materialise(
    module: nn.Module,
    twin: nn.Module,
    layouts: dict[str, Layout],
    group: Group,
    control: Control,
    device: torch.device,
    weights: Weights | None,
) -> None:
    """Give this rank its pieces of what is in the checkpoint, or else on the meta device. A collective.

    Args:
        module: the parallel module.
        twin: a copy of the user's module, all on the meta device.
        layouts: how its tensors are to lie, by name.
        group: the ranks.
        control: the ranks, for small messages.
        device: where the pieces are made.
        weights: the checkpoint.

    Raises:
        HapError: an initialisation leaves a tensor as it was, or a parameter cannot be replaced.
    """
    layouts = layouts if group.size > 1 else {}
    missing: set[str] = set()
    for names, tensor in names_of(module).values():
        if tensor.is_meta:
            # All of them first: whole tensors that come and go between them would leave holes in memory.
            layout = layout_of(names, layouts)
            shape = tensor.shape if layout is None else layout.shapes[group.rank]
            put_piece(module, names[0], tensor, torch.empty(shape, dtype=tensor.dtype, device=device), layout, group)
            missing.update(names)
    if weights is not None:
        pieces = {
            name: (tensor.detach(), layout_of(names, layouts))
            for names, tensor in names_of(module).values()
            for name in names
            if name in weights.shapes
        }
        control.together(partial(weights.read, pieces, group.rank), f"reading {weights.path}")
        missing.difference_update(*(names for names, _ in names_of(module).values() if pieces.keys() & set(names)))
    if missing:
        # Rank 0 draws random numbers, the others none: what the user draws next must be alike again.
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            _initialise(module, twin, missing, layouts, group, control, device)


@dataclass(frozen=True)
class _Part:
    """What is initialised at once: a submodule, with all that it holds or with its own tensors alone."""

    path: str
    module: nn.Module
    deep: bool


def _initialise(
    module: nn.Module,
    twin: nn.Module,
    missing: set[str],
    layouts: dict[str, Layout],
    group: Group,
    control: Control,
    device: torch.device,
) -> None:
    """Fill this rank's pieces of the tensors with these names. Tensors go by the identity of the twin's."""
    names = {key: aliases for key, (aliases, _) in names_of(twin).items() if aliases[0] in missing}
    pieces = named_state(module)
    sizes = {key: tensor.nbytes for key, tensor in _tensors(twin, deep=True).items() if key in names}
    parts = list(_parts(twin, sizes, _smallest_share(names, sizes, layouts, group)))
    held = [{key: like for key, like in _tensors(one.module, deep=one.deep).items() if key in names} for one in parts]
    # Rank 0 needs all of a part at once, the others a tensor after another.
    places = [_places([sizes[key] for key in likes], apart=group.rank == 0) for likes in held]
    # One memory for all: what comes and goes between the pieces leaves holes, which the process keeps.
    memory = torch.empty(max(place.stop for some in places for place in some), dtype=torch.uint8, device=device)
    for part, likes, some in zip(parts, held, places, strict=True):
        fresh = {
            key: memory[place].view(like.dtype).view(like.shape)
            for (key, like), place in zip(likes.items(), some, strict=True)
        }
        fill = partial(_fill, twin, part, fresh, {key: names[key][0] for key in fresh})
        control.settle(fill, f"initialising {part.path or 'the module'}")
        for key, whole in fresh.items():
            broadcast(whole, names[key][0], group)
            piece, layout = pieces[names[key][0]].detach(), layout_of(names[key], layouts)
            if layout is None:
                piece.copy_(whole)
            else:
                layout.fill(piece, whole, group.rank)


def _smallest_share(
    names: dict[int, list[str]], sizes: dict[int, int], layouts: dict[str, Layout], group: Group
) -> float:
    """Bytes of these tensors on the rank that holds the least of them; ranks that hold none do not count."""
    totals = [0.0] * group.size
    for key, aliases in names.items():
        layout = layout_of(aliases, layouts)
        for rank in range(group.size):
            part = 1.0 if layout is None else math.prod(layout.shapes[rank]) / max(1, math.prod(layout.shape))
            totals[rank] += part * sizes[key]
    return min(filter(None, totals), default=0.0)


def _places(sizes: Sequence[int], *, apart: bool) -> list[slice]:
    """Where tensors of so many bytes lie in one memory: apart, or all at its beginning."""
    aligned = (-(-size // _ALIGNED) * _ALIGNED if apart else 0 for size in sizes)
    return [slice(start, start + size) for start, size in zip(accumulate(aligned, initial=0), sizes, strict=False)]


def _tensors(module: nn.Module, *, deep: bool) -> dict[int, torch.Tensor]:
    """Parameters and buffers by identity, in order: of all submodules, or the module's own."""
    tensors = [*module.parameters(recurse=deep), *module.buffers(recurse=deep)]
    return {id(tensor): tensor for tensor in tensors}


def _is_hugging_face(module: nn.Module) -> bool:
    """Whether a module initialises its submodules by Hugging Face's protocol: innermost first, all by one method."""
    return callable(getattr(module, "_init_weights", None))


def _initialiser(root: nn.Module, path: str) -> Callable[[nn.Module], Any] | None:
    """What initialises the submodule at a path: the nearest model's ``_init_weights``, or its own method."""
    names = path.split(".") if path else []
    for end in range(len(names), -1, -1):
        above = root.get_submodule(".".join(names[:end]))
        if _is_hugging_face(above):
            return cast(Callable[[nn.Module], Any], above._init_weights)
    # Torch's own attention has a private one alone.
    for method in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(root.get_submodule(path), method, None)):
            return methodcaller(method)
    return None


def _ordered(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """A module behind all that it holds."""
    for name, child in module.named_children():
        yield from _ordered(child, f"{path}.{name}" if path else name)
    yield path, module


def _parts(twin: nn.Module, sizes: dict[int, int], share: float) -> Iterator[_Part]:
    """Parts that are small beside a share of so many bytes, in the order in which one device initialises them.

    Raises:
        HapError: an initialisation writes too much at once.
    """
    total = sum(sizes.values())
    at_once = max(*sizes.values(), SMALL * share)
    deep: set[str] = set()
    for path, part in twin.named_modules():
        size = sum(sizes.get(key, 0) for key in _tensors(part, deep=True))
        joint = size > at_once and _writes_below(twin, path)
        if joint and size > JOINT * total:
            raise HapError(
                f"{_named(part, path)} initialises what its submodules hold, and is too large to be initialised at "
                "once: give hap.parallelize weights="
            )
        if joint or size <= at_once:
            deep.add(path)
    done: set[str] = set()
    for path, part in _ordered(twin, ""):
        names = path.split(".") if path else []
        above = [top for end in range(len(names) + 1) if (top := ".".join(names[:end])) in deep]
        if not above and _tensors(part, deep=False):
            yield _Part(path, part, deep=False)
        elif above and above[0] not in done:
            done.add(above[0])
            yield _Part(above[0], twin.get_submodule(above[0]), deep=True)


def _writes_below(twin: nn.Module, path: str) -> bool:
    """Whether the initialisation of a submodule writes what its own submodules hold, seen without values."""
    initialise, part = _initialiser(twin, path), twin.get_submodule(path)
    if initialise is None:
        return False
    copied = copy.deepcopy(part)
    own = _tensors(copied, deep=False)
    before = {key: tensor._version for key, tensor in _tensors(copied, deep=True).items()}
    with torch.no_grad():
        initialise(copied)
    return any(
        tensor._version != before.get(key) for key, tensor in _tensors(copied, deep=True).items() if key not in own
    )


def _fill(twin: nn.Module, part: _Part, fresh: dict[int, torch.Tensor], names: dict[int, str]) -> None:
    """Write the initial values of a part into fresh tensors, by the identity of the twin's."""
    for value in fresh.values():
        _bytes(value).fill_(_UNTOUCHED)
    # What this part does not initialise has its values, or gets them, elsewhere.
    memo: dict[int, Any] = {
        key: nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
        for key, tensor in _tensors(part.module, deep=True).items()
        for value in [fresh[key] if key in fresh else torch.empty_like(tensor.detach())]
    }
    copied = copy.deepcopy(part.module, memo)
    ordered = list(_ordered(copied, part.path)) if part.deep else [(part.path, copied)]
    with torch.no_grad():
        for path, one in ordered:
            initialise = _initialiser(twin, path)
            if initialise is not None:
                initialise(one)
    for key, value in fresh.items():
        if value.numel() and _is_untouched(value):
            raise HapError(
                f'the initialisation of {_named(part.module, part.path)} leaves "{names[key]}" without values: its '
                "reset_parameters() must write all of it"
            )


def _is_untouched(value: torch.Tensor) -> bool:
    """Whether an element in floating point, or all others, are still what :func:`_fill` has put there."""
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return any(bool(some.isnan().any()) for some in torch.split(value.view(-1), _LOOKED_AT))
    return all(bool((some == _UNTOUCHED).all()) for some in torch.split(_bytes(value), _LOOKED_AT))


def _named(part: nn.Module, path: str) -> str:
    return f"{type(part).__name__}{path and f' at {path}'}"


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor."""
    return value.view(-1).view(torch.uint8)
