"""Rules for users' own operators, in the notation of :mod:`hap.rules.notation`."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hap.errors import RuleError
from hap.placement import PARTIAL
from hap.rules import proof
from hap.rules.annotate import annotate
from hap.rules.call import Call, Local, Lowered, Rule
from hap.rules.costs import dtype_name
from hap.rules.families import REGISTERED, written_rule_of
from hap.rules.notation import Broadcast, Flat, Group, Line, NotationError, Pattern, Run, blocks, parse

Example = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and keyword arguments of a call."""

PROOF_EXAMPLES = 20
"""Random examples, each with its own uneven splits, that a rule is tried on."""

LARGE = 1e4
"""Size of summands that a mark is tried with, beside those as large as the values: a clamp at -1e3 is not linear."""


def register_rule(
    op: torch._ops.OpOverload | str,
    line: str,
    *,
    lower: Callable[[Call, Local], Lowered] | None = None,
    flops: Callable[..., float] | None = None,
    proof: Callable[[], Example] | None = None,
    replace: bool = False,
    debug: bool | None = None,
) -> None:
    """Says how an operator may be split over devices; without a rule every device computes the whole of it.

    ::

        @torch.library.custom_op("mylib::scaled", mutates_args=())
        def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x * w

        hap.register_rule("mylib::scaled", "~b i, ~i -> b i", debug=True)

    The operands of the line are the operator's tensor arguments in the order of its schema, the outputs are its
    results. Each word is an index: equal words are the same index and have the same size; the operator may be split
    along any of them. ``~`` marks an operand that the operator is linear in (with the others fixed), ``+`` one that is
    added; an index that an operand has and an output lacks must be summed over. ``x!`` says that the operator needs
    the whole of the index ``x``. Arguments that are sizes are named: ``size n=i``. See :mod:`hap.rules.notation`.

    An operator with autograd has two: the one for the backward pass (where it is an operator of its own) needs its own
    rule. Register before the module is traced, on every rank alike.

    Args:
        op: the overload, the result of ``torch.library.custom_op``, or a name: ``"mylib::scaled"``, with its overload
            after a dot where that is not ``default``.
        line: the rule.
        lower: for operators whose arguments depend on the split: ``lower(call, local)`` gives the callable for one
            rank and the arguments that differ, by name (see :class:`hap.rules.call.Local`).
        flops: floating-point operations of a call, as for :func:`torch.utils.flop_counter.register_flop_formula`: it
            takes the operator's arguments with shapes in the place of tensors, and ``out_val``, the shape of the
            result. Default: one for each element touched.
        proof: makes example arguments with random values, ``(args, kwargs)``, anew at each call, for the proof. An
            operator on integers, or on float32 alone, needs it. Default: normal random numbers in float64 with the
            shapes that the line says, other arguments at their defaults.
        replace: whether a rule for this operator, the user's or hap's own, may be replaced.
        debug: whether the rule is proven now: every split that it allows is run on random uneven shares, zero among
            them, and compared with the whole operator. The examples must reach each index that is not blocked, and
            each mark. Default: whether the environment has ``HAP_DEBUG=1``.

    Raises:
        RuleError: there is no such operator; it changes its arguments; the line does not follow the notation or does
            not fit the operator's schema; there is a rule already; or the proof fails or cannot be run. Nothing is
            registered then.
    """
    target = overload_of(op)
    name = str(target)
    before = REGISTERED.get(name)
    if written_rule_of(target) is not None and not replace:
        raise RuleError(
            f"{name} has a rule {'already' if before else 'of its own in hap'}: pass replace=True to put this in its"
            " place" + (", or take it back first with hap.unregister_rule" if before else "")
        )
    _check(target, line)
    for argument, function in (("lower", lower), ("flops", flops), ("proof", proof)):
        if function is not None and not callable(function):
            raise RuleError(f"{argument}= of the rule of {name} must be a function, not {function!r}")
    REGISTERED[name] = Rule(line, lower=lower, flops=flops)
    if os.environ.get("HAP_DEBUG") == "1" if debug is None else debug:
        try:
            _prove(target, parse(line), proof)
        except BaseException:
            del REGISTERED[name]
            if before is not None:
                REGISTERED[name] = before
            raise


def unregister_rule(op: torch._ops.OpOverload | str) -> None:
    """Takes back :func:`register_rule`; a rule of hap's own is in force again.

    Raises:
        RuleError: no rule has been registered for it.
    """
    name = str(overload_of(op))
    if name not in REGISTERED:
        raise RuleError(f"no rule has been registered for {name}")
    del REGISTERED[name]


def overload_of(op: Any) -> torch._ops.OpOverload:
    """The overload that is meant by an overload, a name, or a result of ``torch.library.custom_op``."""
    if isinstance(op, torch._ops.OpOverload):
        return op
    if isinstance(op, torch._library.custom_ops.CustomOpDef):
        return op._opoverload
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads: list[str] = op.overloads()  # type: ignore[no-untyped-call]
        raise RuleError(f"{op} may have several overloads: name one of {', '.join(f'{op}.{o}' for o in overloads)}")
    if not isinstance(op, str):
        raise RuleError(f"an operator is an overload (torch.ops.mylib.scaled.default) or its name, not {op!r}")
    namespace, _, rest = op.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None) if packet else None
    found = None if found is None else getattr(found, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise RuleError(f'there is no operator "{op}": expected "namespace::name", defined before the rule')
    return found


def _check(target: torch._ops.OpOverload, text: str) -> None:
    """That a line follows the notation and fits a schema."""
    schema = target._schema
    if not isinstance(text, str):
        raise RuleError(f'the rule of {target} must be a line of text such as "~b i, ~i j -> b j", not {text!r}')
    try:
        line = parse(text)
    except NotationError as error:
        raise RuleError(f"the rule of {target} does not follow the notation: {error}") from error
    if schema.is_mutable or any(result.alias_info for result in schema.returns):
        raise RuleError(
            f"{target} changes its arguments or returns views of them: only functional operators have rules"
        )
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    tensors = [name for name, kind in kinds.items() if "Tensor" in kind]
    if any("List" in kind for kind in (*(kinds[name] for name in tensors), *(str(r.type) for r in schema.returns))):
        raise RuleError(f"{target} takes or returns a list of tensors, which a line cannot describe")
    if len(line.operands) != len(tensors):
        raise RuleError(
            f"the rule of {target} has {len(line.operands)} operands, but the operator takes {len(tensors)} tensors:"
            f" {', '.join(tensors)}"
        )
    if len(line.outputs) != len(schema.returns):
        raise RuleError(
            f"the rule of {target} has {len(line.outputs)} outputs, but the operator returns {len(schema.returns)}"
        )
    if line.composite:
        raise RuleError(f"the rule of {target} names a composite instruction; those are hap's own")
    for argument in [name for name, _ in line.sizes] + [guard.argument for guard in line.guards]:
        if argument not in kinds:
            raise RuleError(f"the rule of {target} names the argument {argument!r}; there are {', '.join(kinds)}")
    for argument, groups in line.sizes:
        kind = re.fullmatch(r"(Optional\[)?(List\[)?int\]*", kinds[argument])
        if kind is None or (groups is None and not kind.group(2)):
            raise RuleError(
                f"the rule of {target} gives sizes for its argument {argument!r}, a {kinds[argument]}: expected"
                f" {'a list of integers for a shape' if groups is None else 'an integer or a list of them'}"
            )
    _check_products(target, line, {name for name, kind in kinds.items() if kind in ("int", "Optional[int]")})


def _check_products(target: torch._ops.OpOverload, line: Line, integers: set[str]) -> None:
    """That the sizes of all letters follow from those of the dimensions and from arguments that are integers."""
    dims = [dim for pattern in (*line.operands, *line.outputs) for dim in pattern.dims]
    products: list[Group] = [dim for dim in dims if isinstance(dim, tuple) and len(dim) > 1]
    if any(blocks(letter) for dim in dims if isinstance(dim, tuple) for letter in dim):
        raise RuleError(f'the rule of {target}, "{line.text}", has a sum of indices; those are for rules of hap\'s own')
    known = {dim[0] for dim in dims if isinstance(dim, tuple) and len(dim) == 1}
    known |= {dim.letter for dim in dims if isinstance(dim, Flat)}
    known |= {
        groups[0][0]
        for name, groups in line.sizes
        if name in integers and groups and len(groups) == 1 == len(groups[0])
    }
    for _ in products:
        for group in products:
            unknown = [letter for letter in group if letter not in known]
            known.update(unknown if len(unknown) == 1 else [])
    for group in products:
        unknown = [letter for letter in group if letter not in known]
        if unknown:
            raise RuleError(
                f'the rule of {target}, "{line.text}", does not say the sizes of {" and ".join(unknown)} in'
                f" ({' '.join(group)}): all but one index of a product must stand alone elsewhere, or be the size of an"
                f' argument that is an integer ("size ARGUMENT={unknown[0]}")'
            )


def _prove(target: torch._ops.OpOverload, line: Line, example: Callable[[], Example] | None) -> None:
    """Tries the registered rule on random examples."""
    rng = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    rule = f'the rule of {target}, "{line.text}",'
    advice = "" if example is not None else " (pass proof=lambda: (args, kwargs) for arguments of other types or sizes)"
    letters: dict[str, bool] = {}
    """Whether there has been a split, for each letter of an example."""
    summed: set[str] = set()
    """Arguments that have been partial sums."""
    for _ in range(PROOF_EXAMPLES):
        if example is None:
            args, kwargs = _random_example(target, line, rng, generator)
        else:
            args, kwargs = _given_example(target, example)
        shown = f"the example ({_described(args, kwargs)})"
        with _named(f"{target} fails for {shown}{advice}"):
            graph, values = proof.single(target, args, kwargs)
        with _named(f"{rule} cannot be applied to {shown}"):
            axes = annotate(graph)
        call, bound = axes.calls[0], axes.bound[0]
        if bound is None:
            raise RuleError(f"{rule} does not fit {shown}: give examples that it holds for (proof=)")
        for letter in bound.letters:
            if letter not in bound.blocked:
                letters.setdefault(letter, False)
        for choice in axes.choices[0]:
            partial = [i for i, placements in enumerate(choice.inputs) if placements == PARTIAL]
            for least in (0.0, LARGE) if partial else (0.0,):
                devices = rng.randint(2, 4)
                splits = proof.random_splits(axes, devices, rng)
                try:
                    problem = proof.mismatch(axes, 0, choice, values, devices, rng, splits, least)
                except Exception as error:
                    problem = f"its part fails with {type(error).__name__}: {error}"
                if problem is not None:
                    sides = [" ".join(str(p[0]) for p in side) for side in (choice.inputs, choice.outputs)]
                    raise RuleError(
                        f"{rule} is wrong: with its operands placed as {' -> '.join(sides)}, {problem}, for {shown}"
                        " (S0: sharded along index 0, R: whole, P: partial sums)"
                    )
                if choice.axis is not None and choice.letter is not None:
                    units = splits[axes.axes[choice.axis].name]
                    letters[choice.letter[0]] |= sum(share > 0 for share in units) > 1
            summed.update(
                call.names[call.order[i]] for i in partial if values[i].numel() and values[i].isfinite().all()
            )
    _check_tried(target, line, letters, summed)


def _check_tried(target: torch._ops.OpOverload, line: Line, letters: Mapping[str, bool], summed: set[str]) -> None:
    """That the examples have reached all that a line says: each letter that is not blocked, and each mark."""
    untried = [letter for letter, tried in letters.items() if not tried]
    untried += [n for n in _letters(line) if n not in line.blocked and n not in letters and f"{n}0" not in letters]
    if untried:
        raise RuleError(
            f'no example of {target} could be split along {", ".join(untried)} of its rule, "{line.text}": give'
            f" examples in which every index is longer than one (proof=), or block what cannot be split ({untried[0]}!)"
        )
    tensors = [argument.name for argument in target._schema.arguments if "Tensor" in str(argument.type)]
    unsummed = [name for name, p in zip(tensors, line.operands, strict=True) if p.mark and name not in summed]
    if unsummed:
        raise RuleError(
            f'no example of {target} could have partial sums as {", ".join(unsummed)}, which its rule, "{line.text}",'
            " marks with ~ or +: give examples with finite numbers there (proof=), or leave the mark out"
        )


@contextmanager
def _named(problem: str) -> Iterator[None]:
    """Turns what users' functions raise into an error that says where."""
    try:
        yield
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(f"{problem}: {type(error).__name__}: {error}") from error


def _given_example(target: torch._ops.OpOverload, example: Callable[[], Example]) -> Example:
    with _named(f"proof= of the rule of {target} fails"):
        made = example()
    if (
        not isinstance(made, tuple)
        or len(made) != 2
        or not isinstance(made[0], (list, tuple))
        or not isinstance(made[1], Mapping)
    ):
        raise RuleError(
            f"proof= of the rule of {target} must return (args, kwargs), a tuple of positional arguments and a"
            f" dictionary of keyword arguments, not {type(made).__name__}"
        )
    return made


def _described(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments with the type and the shape of tensors: ``float64[3, 4], n=2``."""

    def text(value: Any) -> str:
        return f"{dtype_name(value.dtype)}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

    return ", ".join([*map(text, args), *(f"{name}={text(value)}" for name, value in kwargs.items())])


def _letters(line: Line) -> list[str]:
    """The words of a line, each once, in order."""
    found: dict[str, None] = {}
    for pattern in (*line.operands, *line.outputs):
        for dim in pattern.dims:
            if isinstance(dim, Run):
                found[dim.name] = None
            elif isinstance(dim, Flat):
                found[dim.letter] = None
            elif not isinstance(dim, Broadcast):
                found.update(dict.fromkeys(dim))
    return list(found)


def _random_example(
    target: torch._ops.OpOverload, line: Line, rng: random.Random, generator: torch.Generator
) -> Example:
    """Tensors with the shapes that the line says, two or three dimensions for a run."""
    sizes = {letter: rng.randint(2, 4) for letter in _letters(line)}
    runs = {name: [rng.randint(2, 4) for _ in range(2)] for name in sizes}
    patterns = iter(line.operands)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    given = {argument: [letter for group in groups for letter in group] for argument, groups in line.sizes if groups}
    for argument in target._schema.arguments:
        value: Any
        if "Tensor" in str(argument.type):
            shape = _shape(next(patterns), sizes, runs)
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
        elif argument.name in given and str(argument.type) == "int":
            value = 1
            for letter in given[argument.name]:
                value *= sizes[letter]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise RuleError(
                f"the proof of the rule of {target} needs a value for its argument {argument.name!r}: pass"
                " proof=lambda: (args, kwargs) with example arguments"
            )
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _shape(pattern: Pattern, sizes: Mapping[str, int], runs: Mapping[str, Sequence[int]]) -> list[int]:
    shape: list[int] = []
    for dim in pattern.dims:
        if isinstance(dim, Run):
            shape += runs[dim.name]
        elif isinstance(dim, Flat):
            shape += runs[dim.letter]
        elif isinstance(dim, Broadcast):
            shape += [2, 3]
        else:
            size = 1
            for letter in dim:
                size *= sizes[letter]
            shape.append(size)
    return shape
