"""Finds the first instruction of a step whose result is NaN, on request: under ``torch.autograd.detect_anomaly()``.

The lowered graph is then run node by node, and every result of an instruction is looked at. Nothing is raised in the
middle, where other ranks would wait for ever: at the end of the forward, and of the backward, the ranks compare what
they found first, and all raise the same error. Infinities alone are no error, as masks are made of them; where a NaN
comes of them, the error names the instruction that made the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from hap.errors import NonFiniteError
from hap.graph import Graph
from hap.runtime.agree import Control
from hap.runtime.lower import GIVEN, MADE
from hap.runtime.schedule import Apply, Property, Step, needs_of
from hap.units import listed, ranks_text

_NONE = 2**62


def requested() -> bool:
    """Whether the user asked for it, as PyTorch's own checks are asked for."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


class Checked:
    """Runs a graph and checks its results. Called by all ranks.

    Args:
        code: of the rank.
        what: what it is, for errors: ``forward`` or ``backward``.
        graph: the reference program.
        control: the ranks.
    """

    def __init__(self, code: fx.Graph, what: str, graph: Graph, control: Control) -> None:
        self.code = fx.GraphModule(torch.nn.Module(), code)
        self.what, self.graph, self.control = what, graph, control

    def __call__(self, arguments: list[Any]) -> Any:
        """Run it.

        Raises:
            NonFiniteError: a result or an argument is NaN on some rank; on all ranks.
        """
        finder = _Finder(self.code, self.graph)
        for node, value in zip(self.code.graph.find_nodes(op="placeholder"), arguments, strict=True):
            finder.see(node, value)
        results = finder.boxed_run(arguments)
        position, text = finder.first
        what = f"looking for NaN in the {self.what}"
        positions = [one for (one,) in self.control.numbers([position], what)]
        earliest = min(positions)
        if earliest < _NONE:
            texts = self.control.gather(text, what)
            ranks = [rank for rank, one in enumerate(positions) if one == earliest]
            raise NonFiniteError(
                f"the first NaN in the {self.what}, on {ranks_text(ranks)}: {texts[ranks[0]]}. It was looked for under "
                "torch.autograd.detect_anomaly()"
            )
        return results


class _Finder(fx.Interpreter):
    """Runs a graph, and keeps what the first NaN is.

    Attributes:
        first: position of the instruction, and words for it. ``_NONE`` where all is well.
    """

    def __init__(self, code: fx.GraphModule, reference: Graph) -> None:
        super().__init__(code)
        self.reference = reference
        self.first = (_NONE, "")
        # Where the infinities of a property come from, in words.
        self.infinite: dict[Property, str] = {}

    def run_node(self, node: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(node)
        self.see(node, value)
        return value

    def see(self, node: fx.Node, value: Any) -> None:
        """Look at a node's value, if it is a property's."""
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            if GIVEN in node.meta:
                self.look(value, -1, node.meta[GIVEN], None)
            elif MADE in node.meta:
                self.look(value, *node.meta[MADE])

    def look(self, value: torch.Tensor, position: int, prop: Property, step: Step | None) -> None:
        """Look at the value of a property, given or made by a step."""
        missing = bool(value.isnan().any())
        if not missing and not bool(value.isinf().any()):
            return
        infinite = [need for need in ([] if step is None else needs_of(step)) if need in self.infinite]
        words = self.words(prop, step)
        if not missing:
            self.infinite[prop] = self.infinite[infinite[0]] if infinite else words
        elif self.first[0] == _NONE and not _unset(self.reference, step):
            if infinite:
                words += f". Its inputs hold no NaN, but infinities, which come from {self.infinite[infinite[0]]}"
            elif step is not None:
                words += ". Its inputs are finite"
            self.first = (position, words)

    def words(self, prop: Property, step: Step | None) -> str:
        """What a value is and where it comes from."""
        name = f'"{self.reference.tensors[prop.tensor].name}"'
        if step is None:
            given = next((entry for entry in self.reference.inputs if entry.tensor == prop.tensor), None)
            return f"{name}, which the forward saved" if given is None else f'the {given.kind} "{given.name}"'
        if not isinstance(step, Apply):
            return f"{step.instruction.conversion} of {name}"
        operator = self.reference.operators[step.operator]
        inputs = listed(f'"{self.reference.tensors[need.tensor].name}"' for need in step.needs) or "nothing"
        source = f", {operator.source}" if operator.source else ""
        return f"{name}, made by {operator.target} from {inputs}{source}"


def _unset(graph: Graph, step: Step | None) -> bool:
    """Whether a step yields memory as it was found, which the next one fills."""
    return isinstance(step, Apply) and "empty" in str(graph.operators[step.operator].target)
