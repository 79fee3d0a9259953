"""How much collectives copy of what they send and receive, in parts of the whole tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hap.rules import pieces
from hap.runtime import collectives, lockstep
from hap.runtime.along import Along, crossing
from hap.runtime.requests import Request

SHAPE = (24, 24)
WHOLE = torch.arange(24 * 24).view(SHAPE)
# Each dimension is an axis of twelve units, or two blocks fused that are.
RANKS, UNITS = 3, 12
PLAIN, FUSED = ((1, 2),), ((1, 1), (1, 1))
CUTS = {
    f"{name} {kind}": Along(dim, blocks, units)
    for name, units in {"even": (4, 4, 4), "uneven": (6, 4, 2)}.items()
    for kind, dim, blocks in [("leading", 0, PLAIN), ("inner", 1, PLAIN), ("fused", 0, FUSED)]
}
COPIES = ("clone", "copy_", "cat", "index_select", "index_copy_")

Order = Callable[[torch.Tensor], torch.Tensor]


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def permuted(tensor: torch.Tensor) -> torch.Tensor:
    """The same, in another order in memory."""
    return tensor.t().contiguous().t()


class Written(TorchDispatchMode):
    """Counts the elements that operators write, by the operator's name."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        for one in tree_leaves(args[3] if name == "index_copy_" else result):
            new = name.endswith("_") or "out" in kwargs or one.untyped_storage()._cdata not in given
            self.elements[name] += one.numel() if new and "empty" not in name else 0
        return result

    def parts(self, *names: str) -> Fraction:
        """What operators of these names have written."""
        return Fraction(sum(self.elements[name] for name in names), WHOLE.numel())


def written(kind: str, inputs: list[Any], arguments: list[dict[str, Any]]) -> list[Written]:
    """What each rank writes in a collective, beside what the backend does; nothing but copies, zeros and sums."""
    counts = [Written() for _ in inputs]

    def counted(rank: int) -> Generator[Request, Any, torch.Tensor]:
        steps = collectives.STEPS[getattr(collectives, kind)](inputs[rank], **arguments[rank], rank=rank)
        answer = None
        while True:
            try:
                with counts[rank]:
                    request = steps.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = yield request

    lockstep.run([counted(rank) for rank in range(len(inputs))])
    for each in counts:
        assert each.parts(*COPIES, "zero_", "sum") == each.parts(*each.elements)
    return counts


def shares(cut: Along) -> list[Fraction]:
    return [Fraction(units, UNITS) for units in cut.units]


def pieces_of(cut: Along, order: Order) -> list[torch.Tensor]:
    return [order(piece) for piece in pieces.split(WHOLE, cut, cut.units)]


@pytest.mark.parametrize("order", [in_order, permuted])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("how", ["padded", "grouped", "exchange"])
def test_gathers_copy_the_whole_at_most_once(how: str, cut: Along, order: Order) -> None:
    arguments = {"shape": SHAPE, "along": cut, "implementation": how}
    counts = written("all_gather", pieces_of(cut, order), [arguments] * RANKS)
    leads, even = cut.leads(SHAPE), len({*cut.units}) == 1
    for each, share in zip(counts, shares(cut), strict=True):
        padded = share < max(shares(cut))
        # What is sent, in order, then what is received; a share that has to be copied anyway may lie in any order.
        sent, received = {
            "padded": (share * padded, Fraction(not (leads and even))),
            "grouped": (share * leads, Fraction(not leads)),
            # One copy for each other rank, and what is kept.
            "exchange": (share * RANKS, Fraction(not leads)),
        }[how]
        turned = order is permuted and {"padded": not padded, "grouped": not leads, "exchange": False}[how]
        assert each.parts(*COPIES) == sent + share * turned + received
        assert each.parts("zero_", "sum") == 0


@pytest.mark.parametrize("order", [in_order, permuted])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("how", ["padded", "grouped", "exchange"])
def test_scatters_copy_the_whole_at_most_once(how: str, cut: Along, order: Order) -> None:
    arguments = [{"shape": cut.shape(SHAPE, rank), "along": cut, "implementation": how} for rank in range(RANKS)]
    counts = written("reduce_scatter", [order(WHOLE)] * RANKS, arguments)
    lies = cut.leads(SHAPE) and order is in_order
    for each, share in zip(counts, shares(cut), strict=True):
        padding = max(shares(cut)) * RANKS - 1
        copies, zeros, sums = {
            # The share is cut out of its padding.
            "padded": (Fraction(not (lies and padding == 0)) + share * (share < max(shares(cut))), padding, 0),
            # Sums are made in a copy.
            "grouped": (Fraction(1), 0, 0),
            "exchange": (Fraction(not lies), 0, share),
        }[how]
        assert (each.parts(*COPIES), each.parts("zero_"), each.parts("sum")) == (copies, zeros, sums)


@pytest.mark.parametrize("source", CUTS.values(), ids=CUTS)
def test_exchanges_copy_shares_once_before_and_once_behind(source: Along) -> None:
    across, again = source._replace(dim=1 - source.dim), source._replace(units=(2, 4, 6))
    for kind, target in [("all_to_all", across), ("re_split", again)]:
        arguments = [{"shape": target.shape(SHAPE, rank), "source": source, "target": target} for rank in range(RANKS)]
        counts = written(kind, pieces_of(source, in_order), arguments)
        for each, before, behind in zip(counts, shares(source), shares(target), strict=True):
            # Along the leading axis, what goes to one rank lies together, and so does what comes from one.
            copies = before * (not target.leads(SHAPE)) + behind * (not source.leads(SHAPE))
            assert each.parts(*COPIES) == copies
            assert each.parts("zero_", "sum") == 0


@pytest.mark.parametrize("order", [in_order, permuted])
@pytest.mark.parametrize("dim", [0, 1])
def test_exchanges_within_a_dimension_copy_shares_once_before_and_once_behind(dim: int, order: Order) -> None:
    source, target = Along(dim, ((6, 1),), (1, 1, 2)), Along(dim, ((1, 4),), (2, 3, 1))
    for rank in range(RANKS):
        # Kept for the next call, once it is known.
        crossing(source, target, rank, WHOLE.device)
    arguments = [{"shape": target.shape(SHAPE, rank), "source": source, "target": target} for rank in range(RANKS)]
    counts = written("all_to_all", pieces_of(source, order), arguments)
    for each, before, behind in zip(counts, source.units, target.units, strict=True):
        assert each.parts(*COPIES) == Fraction(before, 4) + Fraction(behind, 6)


@pytest.mark.parametrize(("order", "turned"), [(in_order, 0), (permuted, 1)])
def test_other_collectives_copy_at_most_once(order: Order, turned: int) -> None:
    value = order(WHOLE)
    for kind, arguments, copies in [
        ("all_reduce", {}, 1),
        ("stack", {"ranks": RANKS}, turned),
        ("shift", {"ranks": RANKS, "shape": SHAPE}, turned),
    ]:
        counts = written(kind, [value] * RANKS, [arguments] * RANKS)
        assert [each.parts(*COPIES) for each in counts] == [copies] * RANKS
    counts = written("all_reduce_together", [(value, WHOLE[:12], value.t())] * RANKS, [{}] * RANKS)
    assert [each.parts(*COPIES) for each in counts] == [Fraction(5, 2)] * RANKS
    for cut in CUTS.values():
        with Written() as count:
            share = collectives.slice_share(value, along=cut, rank=1)
        assert share.is_contiguous()
        assert count.parts(*COPIES) == count.parts(*count.elements) == shares(cut)[1]
