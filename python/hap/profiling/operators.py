"""What a device's operators cost: families of operators over sizes."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

import hap.operators  # noqa: F401 - defines torch.ops.hap
from hap.cluster.device import FAMILIES, MEMORY, Points
from hap.profiling.clock import Work, once, rounds
from hap.profiling.fit import rising
from hap.profiling.memory import Operands, Values
from hap.profiling.operands import SUFFIX, Convolution, Product, shapes

# Larger problems are left out where one takes this part of all the time; a family has some sizes in any case.
LARGEST, SIZES = 0.01, 4
# Those are not tried that would take so many times as long at the rate of the one before.
NEARLY = 2.0
# Columns of matrices, which are normalised by row; and of tables, between those of categories and those of words.
WIDTH, EMBEDDING = 256, 64
# Small ones are taken in turns out of a larger memory, as many at most: in a step they are rarely in the fastest cache.
PIECES = 16
# Elements of that memory, on CPUs and on accelerators, which are measured at sizes that fill them.
POOL = (2**24, 2**26)
# Different ones among them.
NUMBERS = 2**16
# All is measured in so many lots, three at least, of at least so many rounds.
LOTS, ROUNDS = 5, 1
# The C library asks the system for each piece of memory that is larger than all it got back, up to so many bytes.
KEPT = 2**25 - 2**12
# Families that compute more than they touch. Operands of the others lie in turns in the larger memory.
HEAVY = ("matmul", "attention", "convolution")
# Lots of so many rounds whose times differ by more are told of.
COMPARABLE, OTHER_WORK = 3, 0.25

aten = torch.ops.aten

_log = logging.getLogger("hap")

Problem = tuple[float, tuple[Work, ...]]
"""FLOP as :mod:`hap.rules.costs` counts them (or bytes), and operators of which each does so many."""


def names(dtypes: tuple[torch.dtype, ...]) -> list[str]:
    """Everything that is measured of a device, as in :attr:`hap.Device.measured`."""
    return [MEMORY, *(f"{family}/{str(dtype).removeprefix('torch.')}" for family in FAMILIES for dtype in dtypes)]


def measure(
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    *,
    seconds: float,
    advance: Callable[[], object] = lambda: None,
) -> tuple[dict[str, Points], float]:
    """The times of :func:`names` over sizes, all in turns, measured in about so many seconds.

    The least times of lots say how they compare, in the mean of all lots but two: what else the machine does makes
    times longer, never shorter, for seconds at a time, and in some lots addresses are luckier than in others. In
    training all take as much longer than that as they usually do meanwhile.
    On CPUs what counts is the time that the main thread has a processor, so that one that it has for a part of the time
    only (the quota of a container, say) does not show in long operators more than in short ones, but in what the thread
    gets of some seconds, at best.

    Args:
        dtypes: element types.
        device: what computes.
        seconds: for all.
        advance: called after each round.

    Returns:
        The times by name, for ``matmul_operands`` and the like those of whole operators; and the part of the time that
        the process has its processor, 1 on accelerators.
    """
    if device.type == "cpu":
        # From now on it keeps them, as in training after the first step.
        torch.empty(KEPT, dtype=torch.uint8)
    # In no order, which a processor would foresee.
    numbers = torch.linspace(-2.0, 2.0, NUMBERS)[_shuffled(NUMBERS)]
    pools = {
        str(dtype).removeprefix("torch."): numbers.to(device, dtype).repeat(2 * POOL[device.type != "cpu"] // NUMBERS)
        for dtype in dict.fromkeys((torch.float32, *dtypes))
    }
    limit = LARGEST * seconds
    operands = {name: Operands(pools[_dtype(name)]) for name in names(dtypes)}
    lines = _lines(dtypes, pools, {name: own.lot(0) for name, own in operands.items()})
    tried = {name: [*_affordable(line, device, limit)] for name, line in lines.items()}
    times = [time for line in tried.values() for _, every in line for time in every]
    problems = {name: [problem for problem, _ in line] for name, line in tried.items()}
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    lots: list[list[list[float]]] = []
    shares: list[float] = []
    for lot in range(LOTS):
        for name, line in _lines(dtypes, pools, {name: own.lot(lot) for name, own in operands.items()}).items():
            if name.startswith(HEAVY):
                problems[name] = [*itertools.islice(line, len(problems[name]))]
        works = (work for line in problems.values() for _, every in line for work in every)
        found, began, used = [], time.perf_counter(), time.thread_time()
        pairs = [*zip(works, times, strict=True)]
        for measured in rounds(pairs, device, seconds=seconds / LOTS, least=ROUNDS, clock=clock):
            found.append(measured)
            advance()
        shares.append((time.thread_time() - used) / (time.perf_counter() - began))
        lots.append(found)
    if len(found) >= COMPARABLE:
        _tell_of_other_work(lots)
    share = min(1.0, max(shares)) if device.type == "cpu" else 1.0
    every_round = [*itertools.chain.from_iterable(lots)]
    heavy = [name.startswith(HEAVY) for name, line in problems.items() for _, every in line for _ in every]
    lowest = [_usual_lot(least) for least in zip(*map(_least, lots), strict=True)]
    usual, least = _usual(every_round, lowest, heavy), iter(lowest)
    points = {
        name: rising([(amount, usual * sum(next(least) for _ in every) / len(every)) for amount, every in line])
        for name, line in problems.items()
    }
    return points, share


def _usual(every_round: Sequence[Sequence[float]], least: Sequence[float], heavy: Sequence[bool]) -> float:
    """How many times longer than their least times the heavy operators take in the middle one of all rounds."""
    totals = [sum(itertools.compress(times, heavy)) for times in every_round]
    return statistics.median(totals) / sum(itertools.compress(least, heavy)) if any(heavy) else 1.0


def _least(found: Sequence[Sequence[float]]) -> list[float]:
    """The least times of the rounds of a lot."""
    return [min(every) for every in zip(*found, strict=True)]


def _usual_lot(times: Sequence[float]) -> float:
    """The mean of the times of all lots but the least and the largest."""
    return statistics.fmean(sorted(times)[1:-1])


def _tell_of_other_work(lots: Sequence[Sequence[Sequence[float]]]) -> None:
    """Logs how far the least times of whole lots differ, which are of the same work."""
    means = [statistics.geometric_mean(_least(found)) for found in lots]
    difference = max(means) / min(means) - 1.0
    level = logging.WARNING if difference > OTHER_WORK else logging.DEBUG
    text = "profile: the machine's speed changed by %.0f%% while operators were measured; does something else run?"
    _log.log(level, text, 100.0 * difference)


def _dtype(name: str) -> str:
    """The element type of what is measured under a name."""
    return name.partition("/")[2] or "float32"


def _lines(
    dtypes: tuple[torch.dtype, ...], pools: Mapping[str, torch.Tensor], values: Mapping[str, Values]
) -> dict[str, Iterator[Problem]]:
    """By name, larger and larger problems; of light operators with numbers from the pool of their element type."""
    return {
        name: _problems(name.partition("/")[0], pools[_dtype(name)].view(2, -1, WIDTH), values[name])
        for name in names(dtypes)
    }


def _affordable(line: Iterator[Problem], device: torch.device, limit: float) -> Iterator[tuple[Problem, list[float]]]:
    """Problems and what their operators take, up to the first that takes too long, or is about to."""
    rate = math.inf
    for position, (amount, every) in enumerate(line):
        if position >= SIZES and amount / rate > NEARLY * limit:
            return
        taken = [once(work, device) for work in every]
        if position >= SIZES and sum(taken) > limit:
            return
        rate = amount / sum(taken)
        yield (amount, every), taken


def _problems(family: str, pool: torch.Tensor, values: Values) -> Iterator[Problem]:
    """Larger and larger ones; those that a family's operators of usual models lie between.

    Heavy operators read ``values``, the others the pool.
    """
    work: Work
    large = pool.device.type != "cpu"
    if multiplied := shapes(family, large=large):
        for one in multiplied:
            amount = pool.itemsize * one.elements if family.endswith(SUFFIX) else one.flops
            yield amount, (_multiplying(one, values),)
    elif family.startswith("attention"):
        # Larger batches of longer texts: in short ones softmax and what surrounds it take more of the time.
        for samples, length in (
            (2, 16),
            (2, 64),
            (8, 64),
            (8, 128),
            (16, 256),
            (2, 1024),
            *(((16, 1024), (8, 2048)) if large else ()),
        ):
            q, k, v = (values(samples, 8, length, 64) for _ in range(3))
            options = (None, None, 0.0, False, 0.125, False, 0)
            work, multiplications = partial(torch.ops.hap.sdpa, q, k, v, *options), 2
            if family == "attention_backward":
                work = partial(torch.ops.hap.sdpa_backward, q, q, k, v, *work(), *options, False)
                multiplications = 5
            yield multiplications * 2.0 * samples * 8 * length**2 * 64, (work,)
    else:
        # What the largest pooling says of places is as large as what the C library sometimes keeps, sometimes returns.
        largest = 26 if large else 22 if family == "pooling" else 24
        for exponent in (6, *range(10, largest + 1, 2)):
            shape = (max(1, 2**exponent // WIDTH), min(WIDTH, 2**exponent))
            amount = shape[0] * shape[1]
            pieces = torch.split(pool[:, : PIECES * shape[0], : shape[1]], shape[0], 1)
            every = [_touching(family, *piece) for piece in pieces]
            taken = tuple(partial(_next, itertools.cycle(works)) for works in zip(*every, strict=True))
            yield float(amount if family != MEMORY else 3 * amount * pool.itemsize), taken


def _shuffled(count: int) -> torch.Tensor:
    """The numbers below ``count`` in an order without pattern, the same at each call."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


def _next(works: Iterator[Work]) -> object:
    return next(works)()


def _multiplying(shape: Product | Convolution, values: Values) -> Work:
    if isinstance(shape, Product):
        return partial(torch.mm, values(shape.rows, shape.size), values(shape.size, shape.size))
    x = values(shape.samples, shape.channels, shape.image, shape.image)
    weight, rest = values(shape.channels, shape.channels, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    if shape.backward:
        return partial(aten.convolution_backward, x, x, weight, None, *rest, [True, True, False])
    return partial(aten.convolution, x, weight, None, *rest)


def _touching(family: str, x: torch.Tensor, y: torch.Tensor) -> tuple[Work, ...]:
    """What touches the elements of a matrix, and of another like it, once or a few times."""
    columns = x.shape[1]
    match family:
        case "memory":
            return (partial(aten.add, x, y),)
        case "copy":
            heads = x.reshape(-1, 4, columns // 4).transpose(0, 1)
            return tuple(
                partial(aten.clone, turned, memory_format=torch.contiguous_format) for turned in (x.t(), heads)
            )
        case "transcendental":
            return (partial(aten.gelu, x), partial(aten.silu, x), partial(aten.tanh, x))
        case "transcendental_backward":
            return (partial(aten.gelu_backward, x, y), partial(aten.silu_backward, x, y))
        case "normalisation":
            mean = scale = x[:, :1]
            return (
                partial(aten._softmax, x, -1, False),
                partial(aten._log_softmax, x, -1, False),
                partial(aten.native_layer_norm, x, [columns], None, None, 1e-5),
                partial(
                    aten.native_layer_norm_backward, x, y, [columns], mean, scale, None, None, [True, False, False]
                ),
            )
        case "indexing":
            table = x.reshape(-1, min(columns, EMBEDDING))
            places = _shuffled(len(table)).to(x.device)
            return (
                partial(aten.embedding, table, places),
                partial(aten.embedding_dense_backward, table, places, len(table), -1, False),
            )
        case "pooling" | "pooling_backward":
            images, window = x.reshape(1, -1, 8, 8), ([2, 2], [2, 2], [0, 0], [1, 1], False)
            if family == "pooling":
                return (partial(aten.max_pool2d_with_indices, images, *window),)
            # Of each window the first element counts as the largest.
            first = torch.arange(64, device=x.device).view(8, 8)[::2, ::2]
            places = first.expand(1, images.shape[1], 4, 4).contiguous()
            pooled = y.view(-1)[: places.numel()].view(places.shape)
            return (partial(aten.max_pool2d_with_indices_backward, pooled, images, *window, places),)
        case _:
            raise AssertionError(f"no such family: {family}")
