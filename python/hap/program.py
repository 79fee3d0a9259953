"""A distributed program, as the Rust core writes it (``rust/program.rs``): instructions for all devices, in order."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Placements: TypeAlias = tuple[str, ...]
"""Placement on every level of the mesh as short strings (:func:`hap.placement.parse`)."""

Splits: TypeAlias = dict[str, list[int]]
"""Units that each device gets, by the name of the axis or of another split class of it."""

Conversion = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "re_split", "slice", "keep_one", "pad"]
Implementation = Literal["padded", "grouped", "exchange", "builtin"]


class SplitClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another split of an axis, beside that of the axis itself; what goes from one to the other is re-split.

    Attributes:
        axis: the name of the axis.
        role: what it is for: ``compute`` (stretches of the model that are split otherwise), or ``storage`` (parameters,
            and with them gradients and buffers, at rest; no operator shares its work so).
    """

    axis: str
    role: Literal["compute", "storage"]


Classes: TypeAlias = dict[str, SplitClass]
"""Split classes by name, such as ``batch@2``."""


class InputInstruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="input"):
    """An input of the graph is there, in this placement."""

    tensor: str
    placement: Placements


class Compute(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="compute"
):
    """An operator is applied to local pieces; ``axis`` is the one that the work is shared along, if any.

    ``composite`` names the composite instruction (:class:`hap.rules.choices.Choice`), where it is one.
    """

    operator: str
    target: str
    inputs: tuple[tuple[str, Placements], ...]
    outputs: tuple[tuple[str, Placements], ...]
    axis: str | None
    composite: str | None = None


class Convert(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="convert"
):
    """A tensor gains another placement, by a collective or by a local step (``slice``, ``keep_one``, ``pad``).

    All-reduces of one element type that follow each other with the same ``bucket`` are one collective.
    """

    conversion: Conversion
    tensor: str
    # `from` is a keyword in Python.
    source: Placements = msgspec.field(name="from")
    target: Placements = msgspec.field(name="to")
    axis: str | None
    implementation: Implementation | None
    bucket: int | None = None


class Free(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="free"):
    """A tensor is no longer there in a placement; computed or converted once more, it is another value.

    Views of what is freed stay, until they are freed too. Inputs of the graph, as stored, are never freed.
    """

    tensor: str
    placement: Placements


class OutputInstruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="output"):
    """An output of the graph: the tensor and placement that it is read from."""

    name: str
    tensor: str
    placement: Placements


Instruction: TypeAlias = InputInstruction | Compute | Convert | Free | OutputInstruction


class Replicated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator that every device computes whole, because no rule covers it.

    Attributes:
        operator: its name in the graph.
        target: the overload that it calls, such as ``aten.hash_tensor.default``.
        source: the user's source line; empty where there is none.
    """

    operator: str
    target: str
    source: str


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ordered list of instructions. An operator may be applied more than once.

    That is in different placements, or after its results were freed.
    """

    instructions: tuple[Instruction, ...]
