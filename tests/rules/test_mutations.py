"""The proof notices wrong rules: a dropped ``!``, ``+`` or list of reads gives an instruction that it refutes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from hap.rules import annotate
from hap.rules.call import Rule
from hap.rules.families import RULES
from hap.rules.notation import parse
from tests.rules.cases import CASES
from tests.rules.sketch import Case, Sketch, beside_replicated, faults

Mutation = tuple[str, str]
"""What is dropped: ``("!", letter)``, ``("+", number of the operand)``, ``("{}", number of the output)``."""

HARMLESS = {
    # Features of values: each is a sum of its own, but kernels want as many as in queries and keys.
    ("hap.sdpa.default", ("!", "f")),
    ("hap.sdpa_backward.default", ("!", "f")),
    # Each rank would make all the zeros, and they sum to zeros.
    ("aten.new_zeros.default", ("!", "s0")),
    # Each rank would say that nothing has failed, by zeros.
    ("aten._linalg_solve_ex.default", ("{}", "2")),
}
"""Mutations that give instructions which happen to be right."""


UNCHECKED = re.compile(
    r"aten\.((max_unpool|(_?adaptive_|fractional_)?(max|avg)_pool)\dd(_with_indices)?(_backward)?|_?segment_reduce.*|"
    r"_pdist_backward)\.|hap\.ctc_loss"
)
"""Kernels that read or write without a check of indices or sizes: what a wrong rule asks for may corrupt memory."""


def mutations(text: str) -> Iterator[tuple[Mutation, str]]:
    """Every mutation of a line."""
    line = parse(text)
    for letter in sorted(line.blocked):
        yield ("!", letter), re.sub(rf"\b{letter}!", letter, text)
    operands, arrow, outputs = text.partition("->")
    patterns = operands.split(",")
    for i, pattern in enumerate(line.operands):
        if pattern.mark == "+":
            dropped = [p.replace("+", "", 1) if j == i else p for j, p in enumerate(patterns)]
            yield ("+", str(i)), ",".join(dropped) + arrow + outputs
    for i, match in enumerate(re.finditer(r"\{[^}]*\}", outputs)):
        yield ("{}", str(i)), operands + arrow + outputs[: match.start()] + outputs[match.end() :]


def mutated(rule: Rule, mutation: Mutation) -> Rule:
    """The rule with a mutation of every line that has it."""

    def change(text: str) -> str:
        return dict(mutations(text)).get(mutation, text)

    def write(*args: Any) -> Any:
        written = rule.line(*args)  # type: ignore[operator]
        if isinstance(written, tuple):
            return change(written[0]), written[1]
        return None if written is None else change(written)

    return replace(rule, line=change(rule.line) if isinstance(rule.line, str) else write)


def all_mutations(name: str) -> list[Mutation]:
    """The mutations of the lines that a rule's cases bind to."""
    found: set[Mutation] = set()
    for case in (c for c in CASES if c.rule == name):
        sketch = Sketch(random.Random(0))
        case.build(sketch)
        bound = annotate(sketch.graph).bound[case.operator(sketch.graph)]
        assert bound is not None
        found.update(mutation for mutation, _ in mutations(bound.line.text))
    return sorted(found)


def trial(case: Case, seed: int) -> tuple[frozenset[str], bool]:
    """The choices of the case's operator, and whether one of them fails its proof."""
    rng = random.Random(seed)
    sketch = Sketch(rng)
    case.build(sketch)
    axes = annotate(sketch.graph)
    operator = case.operator(sketch.graph)
    try:
        wrong = bool(faults(sketch, axes, [operator], rng.randint(2, 3), rng))
    except (RuntimeError, IndexError, AssertionError, ValueError):
        wrong = True  # a kernel or an assertion refuses what the wrong choice asks for
    return beside_replicated(axes, operator), wrong


@pytest.mark.parametrize("name", sorted(name for name in RULES if not UNCHECKED.match(name)))
def test_mutations_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation survives where it adds an instruction that passes all trials."""
    torch.set_num_threads(1)
    rule, cases = RULES[name], [c for c in CASES if c.rule == name]
    survivors = []
    for mutation in all_mutations(name):
        if (name, mutation) in HARMLESS:
            continue
        monkeypatch.setitem(RULES, name, mutated(rule, mutation))
        trials = [(case, seed) for seed in range(12) for case in cases]
        added = False
        for case, seed in trials:
            choices, wrong = trial(case, seed)
            added |= not choices <= case.expected
            if wrong or (seed > 1 and not added):
                break
        if added and not wrong:
            survivors.append((name, mutation))
        monkeypatch.setitem(RULES, name, rule)
    assert survivors == []


def test_harmless_mutations_exist() -> None:
    assert [m for m in HARMLESS if m[1] not in all_mutations(m[0])] == []
