"""Every argument that may depend on sizes is known to be local (made for each rank) or global (the same on all)."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from hap.rules import annotate
from hap.rules.call import Call, Local, Lowered, Rule, size_arguments
from hap.rules.families import RULES, every_rule
from tests.rules.cases import CASES
from tests.rules.cases_generated import overload
from tests.rules.sketch import Sketch

GLOBAL = {
    # sizes and shifts of dimensions that stay whole
    r"aten\..*(pool|upsample|unpool|col2im).*output_size": "positions",
    r"aten\.(reflection|replication)_pad.*padding": "positions",
    r"aten\.convolution.*(stride|padding|dilation)": "positions",
    r"aten\.native_group_norm.*HxW": "positions",
    r"aten\.native_layer_norm.*normalized_shape": "what is normalised over",
    r"aten\._fft_c2r.*last_dim_size": "a transformed dimension",
    r"aten\.roll.*shifts": "a rolled dimension",
    r"aten\.masked_scatter_backward.*sizes": "nothing is shared",
    r"aten\.as_strided.*(size|stride|storage_offset)": "nothing is shared",
    # positions in such dimensions, and counts of them
    r"aten\.(select|select_copy|select_scatter)\..*index": "a dimension that is taken away",
    r"aten\.(tril|triu)\..*diagonal": "counted from the first row and column of the whole matrix",
    r"aten\.(topk|kthvalue)\..*k": "of the whole dimension",
    r"aten\.(slice|slice_copy|slice_scatter)\..*step": "one wherever the dimension is shared",
    r"aten\.embedding.*padding_idx": "a row of the whole table",
    # no sizes at all
    r"aten\._fft_c2c.*dim": "which dimensions are transformed",
    # made whole, then narrowed
    r"aten\.eye\..*[nm]": "of the whole matrix",
}
"""Arguments ``operator.argument`` that a rank takes as they were traced, and why that is right."""


@pytest.fixture(scope="module")
def local() -> set[str]:
    """Arguments that lines name as sizes, or that rules make local, in some case."""
    found: set[str] = set()

    def recording(name: str, rule: Rule) -> Rule:
        def lower(call: Call, site: Local) -> Lowered:
            assert rule.lower is not None
            target, changes = rule.lower(call, site)
            found.update(f"{name}.{argument}" for argument in changes)
            return target, changes

        return replace(rule, lower=lower)

    lowered = {name: rule for name, rule in RULES.items() if rule.lower is not None}
    with pytest.MonkeyPatch.context() as patch:
        for name, rule in lowered.items():
            patch.setitem(RULES, name, recording(name, rule))
        for case in CASES:
            if not size_arguments(overload(case.rule)):
                continue
            sketch = Sketch(random.Random(0))
            case.build(sketch)
            axes = annotate(sketch.graph)
            index = case.operator(sketch.graph)
            bound = axes.bound[index]
            assert bound is not None
            found.update(f"{case.rule}.{argument}" for argument, _ in bound.line.sizes)
            splits: Any = {axis.name: [1, axis.size - 1] for axis in axes.axes}
            for choice in axes.choices[index]:
                axes.local_code(index, choice, splits, 0)
    return found


def test_every_size_is_local_or_global(local: set[str]) -> None:
    every = {f"{name}.{argument}" for name in every_rule() for argument in size_arguments(overload(name))}
    known = {argument for argument in every if any(re.fullmatch(pattern, argument) for pattern in GLOBAL)}
    assert sorted(every - known - local) == []
    assert sorted(known & local) == []
    unused = [pattern for pattern in GLOBAL if not any(re.fullmatch(pattern, argument) for argument in every)]
    assert unused == []


def test_the_sizes_of_the_central_operators_are_local(local: set[str]) -> None:
    names = ["aten.view.default.size", "aten.expand.default.size", "aten.convolution.default.groups"]
    assert local.issuperset([*names, "aten.slice.Tensor.start", "aten.split_with_sizes.default.split_sizes"])
