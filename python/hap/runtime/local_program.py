"""What one rank runs: a graph for the forward and one for the backward, and the code of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import fx
from torch.fx.graph import _BoxedCodeGen

from hap.runtime import collectives
from hap.runtime.code import Maker, Runs, straight
from hap.runtime.schedule import Asked, Given, Property


@dataclass(frozen=True)
class LocalProgram:
    """What one rank runs.

    ``forward`` takes ``[*inputs, group]`` and returns ``[*outputs, *saved]``; ``backward`` takes
    ``[*saved, *tangents, group]`` and returns the gradients. Both take one list, which they empty.

    Attributes:
        rank: this rank.
        forward_graph: the forward's graph.
        backward_graph: the backward's; ``None`` where there is nothing to differentiate.
        inputs, tangents: what they take, with the placements in which it must be.
        outputs, gradients: what they return, with its placements.
        saved: what crosses from one to the other; only what this rank uses.
        make: makes what runs a graph.
    """

    rank: int
    forward_graph: fx.Graph
    backward_graph: fx.Graph | None
    inputs: tuple[Given, ...]
    tangents: tuple[Given, ...]
    outputs: tuple[Asked, ...]
    gradients: tuple[Asked, ...]
    saved: tuple[Property, ...]
    make: Maker = straight

    @cached_property
    def forward(self) -> Runs:
        """The forward as code."""
        return self.make(self.forward_graph, "forward")

    @cached_property
    def inference(self) -> Runs:
        """The forward as code that saves nothing: it returns the outputs alone."""
        graph = fx.Graph()
        graph.set_codegen(_BoxedCodeGen())
        results = graph.graph_copy(self.forward_graph, {})
        assert isinstance(results, list)
        graph.output(results[: len(self.outputs)])
        drop_unused(graph)
        return self.make(graph, "forward")

    @cached_property
    def backward(self) -> Runs | None:
        """The backward as code."""
        return None if self.backward_graph is None else self.make(self.backward_graph, "backward")


def drop_unused(graph: fx.Graph) -> None:
    """Drop nodes that nothing reads, but no collective: other ranks wait in it."""

    def stays(node: fx.Node) -> bool:
        return node.op in ("placeholder", "output") or node.target is collectives.wait or collectives.moves(node.target)

    graph.eliminate_dead_code(stays)
