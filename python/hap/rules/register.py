"""Rules for users' own operators, in the notation of :mod:`hap.rules.notation`."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hap.errors import RuleError
from hap.rules import proof
from hap.rules.annotate import annotate
from hap.rules.call import Call, Local, Lowered, Rule
from hap.rules.families import REGISTERED, written_rule_of
from hap.rules.notation import Broadcast, Flat, Line, NotationError, Pattern, Run, parse

Example = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and keyword arguments of a call."""

PROOF_EXAMPLES = 20
"""Random examples, each with its own uneven splits, that a rule is tried on."""


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
        proof: makes example arguments, ``(args, kwargs)``, anew at each call, for the proof. Default: normal random
            numbers in float64 with the shapes that the line says, other arguments at their defaults.
        replace: whether a rule for this operator, the user's or hap's own, may be replaced.
        debug: whether the rule is proven now: every split that it allows is run on random uneven shares, zero among
            them, and compared with the whole operator. Default: whether the environment has ``HAP_DEBUG=1``.

    Raises:
        RuleError: there is no such operator; it changes its arguments; the line does not follow the notation or does
            not fit the operator's schema; there is a rule already; or the proof fails. Nothing is registered then.
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
    REGISTERED[name] = Rule(line, lower=lower, flops=flops)
    if os.environ.get("HAP_DEBUG") == "1" if debug is None else debug:
        try:
            _prove(target, parse(line), proof)
        except RuleError:
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


def _prove(target: torch._ops.OpOverload, line: Line, example: Callable[[], Example] | None) -> None:
    """Tries the registered rule on random examples."""
    rng = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    sharded = False
    for _ in range(PROOF_EXAMPLES):
        args, kwargs = example() if example is not None else _random_example(target, line, rng, generator)
        graph, values = proof.single(target, args, kwargs)
        axes = annotate(graph)
        if axes.replicated:
            raise RuleError(
                f'the rule of {target}, "{line.text}", does not fit a call with shapes'
                f" {', '.join(str(list(value.shape)) for value in values)}: give examples that it holds for (proof=)"
            )
        for choice in axes.choices[0]:
            sharded |= choice.axis is not None
            try:
                problem = proof.mismatch(axes, 0, choice, values, rng.randint(2, 4), rng)
            except (RuntimeError, ValueError, IndexError, AssertionError) as error:
                problem = f"the operator refuses its part: {error}"
            if problem is not None:
                sides = [" ".join(str(p[0]) for p in side) for side in (choice.inputs, choice.outputs)]
                raise RuleError(
                    f'the rule of {target}, "{line.text}", is wrong: with its operands placed as {" -> ".join(sides)},'
                    f" {problem} (S0: sharded along index 0, R: whole, P: partial sums)"
                )
    if not sharded and len(line.blocked) < len(_letters(line)):
        raise RuleError(f"no example of {target} has an index longer than one that its rule could be split along")


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
    given = {argument: groups[0] for argument, groups in line.sizes if groups}
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
