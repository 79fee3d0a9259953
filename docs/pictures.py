"""Draws the pictures of the pages from a real plan, that of the model in ``docs/index.md``, into ``docs/images``.

    python -m docs.pictures

The same plan gives the same pictures (tests/docs/test_pictures.py).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from docs.blocks import file_in
from docs.svg import Picture

import hap
from hap.cli.arguments import read_model
from hap.placement import Shard, parse
from hap.planning.text import split_alike
from hap.program import Compute, Convert, InputInstruction
from hap.rules import AxisGraph, annotate
from hap.units import seconds_text

HERE = Path(__file__).parent
DEVICES = ("#4262c5", "#7b96e8", "#e08b3c")
"""Colours of the devices, by rank."""
AXES = ("#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98")
COLLECTIVE, OTHERS, EMPTY = "#444444", "#999999", "#eeeeee"
SHOWN = ("args.0", "layers.0.weight", "addmm", "layers.2.weight", "addmm_1", "layers.4.weight", "addmm_2")
"""Tensors of the first picture: each activation, the weight that it is multiplied by, and the result."""


def planned() -> tuple[AxisGraph, hap.Plan]:
    """The graph of the model of the first page with its axes, and its plan."""
    with TemporaryDirectory() as folder:
        Path(folder, "model.py").write_text(file_in(HERE / "index.md", "model.py"))
        model, inputs, _ = read_model(f"{folder}/model.py:build")
        cluster = hap.Cluster(["V100", "V100", "P100"], link="25GbE")
        return annotate(hap.trace(model, inputs)), hap.plan(model, devices=cluster, example_inputs=inputs)


def axes(graph: AxisGraph) -> Picture:
    """Tensors as rectangles, each side in the colour of its axis."""
    tensors = {tensor.name: number for number, tensor in enumerate(graph.graph.tensors)}
    colours: dict[str, str] = {}
    picture = Picture(900, 300)
    for place, name in enumerate(SHOWN):
        left, top = 30 + 125 * place, 50 if place % 2 else 130
        sides = {entry.dim: graph.axes[entry.axis] for entry in reversed(graph.occurrences[tensors[name]])}
        for dim in sorted(sides):
            colours.setdefault(sides[dim].name, AXES[len(colours) % len(AXES)])
        down, across = (colours[sides[dim].name] for dim in (0, 1))
        picture.box(left, top, 92, 60, EMPTY)
        picture.box(left, top, 6, 60, down)
        picture.box(left, top, 92, 6, across)
        picture.text(left + 49, top - 8, name, middle=True, bold=True)
        picture.text(left + 49, top + 28, f"{sides[0].size} x", down, middle=True)
        picture.text(left + 49, top + 46, str(sides[1].size), across, middle=True)
    for place, (name, colour) in enumerate(colours.items()):
        left, top = 30 + 290 * (place % 3), 240 + 28 * (place // 3)
        picture.box(left, top - 11, 14, 14, colour)
        picture.text(left + 22, top, name)
    return picture


def placements(plan: hap.Plan) -> Picture:
    """What each device holds of each parameter, as stored."""
    shapes = {"layers.0.weight": 2, "layers.0.bias": 1, "layers.2.weight": 2, "layers.2.bias": 1, "layers.4.weight": 2}
    stored = {each.tensor: each.placement for each in plan.program.instructions if isinstance(each, InputInstruction)}
    split = axes_of_stored(plan)
    picture = Picture(900, 40 + 92 * len(shapes))
    for rank, device in enumerate(plan.cluster.devices):
        picture.text(330 + 190 * rank, 22, f"device {rank}: {device.name}", middle=True, bold=True)
    for row, (name, dims) in enumerate(shapes.items()):
        top, (placement,) = 40 + 92 * row, stored[name]
        high = 70
        picture.text(20, top + 32, name, bold=True)
        picture.text(20, top + 50, {"R": "R: whole on each"}.get(placement, f"{placement}: along {split.get(name)}"))
        wide = 110 if dims == 2 else 26
        units = plan.units(split[name]) if name in split else None
        for rank in range(len(plan.cluster.devices)):
            left = 330 + 190 * rank - wide / 2
            picture.box(left, top, wide, high, EMPTY)
            if units is None:
                picture.box(left, top, wide, high, DEVICES[rank])
                continue
            start, share = sum(units[:rank]) / sum(units), units[rank] / sum(units)
            if parse(placement) == Shard(1):
                picture.box(left + start * wide, top, share * wide, high, DEVICES[rank])
            else:
                picture.box(left, top + start * high, wide, share * high, DEVICES[rank])
            picture.text(left + wide + 6, top + 40, str(units[rank]))
    return picture


def axes_of_stored(plan: hap.Plan) -> dict[str, str]:
    """By tensor that the step starts with in shards, the axis along which its first reader shares its work."""
    found: dict[str, str] = {}
    for each in plan.program.instructions:
        if isinstance(each, Compute) and each.axis is not None:
            for name, placement in each.inputs:
                if placement[0].startswith("S"):
                    found.setdefault(name, each.axis)
        elif isinstance(each, Convert) and each.axis is not None:
            found.setdefault(each.tensor, each.axis)
    return found


def program(plan: hap.Plan) -> Picture:
    """The step by the clock: a line for each device, and one for collectives."""
    assert plan.details is not None
    left, wide, seconds = 130, 740, plan.predicted_time
    ranks = range(len(plan.cluster.devices))
    lines = [plan.details.lines[plan.details.line_of[rank]].computation for rank in ranks]
    picture = Picture(900, 70 + 52 * (len(lines) + 1))
    names = [f"{rank}: {device.name}" for rank, device in enumerate(plan.cluster.devices)] + ["collectives"]
    for row, busy in enumerate([*lines, plan.details.communication]):
        top = 16 + 52 * row
        picture.text(20, top + 24, names[row], bold=True)
        picture.box(left, top, wide, 36, EMPTY)
        for each in busy:
            start, length = left + wide * each.start / seconds, wide * (each.end - each.start) / seconds
            instruction = plan.program.instructions[each.instruction]
            if isinstance(instruction, Compute):
                colour = DEVICES[row] if instruction.axis is not None else OTHERS
                name = instruction.operator
            else:
                assert isinstance(instruction, Convert)
                colour, name = COLLECTIVE, instruction.conversion
            picture.box(start, top, length, 36, colour, title=f"{name}, {seconds_text(each.end - each.start)}")
            if length > 9 * len(name):
                picture.text(start + length / 2, top + 23, name, "#ffffff", middle=True)
    bottom = 16 + 52 * (len(lines) + 1)
    for part in range(5):
        picture.text(left + wide * part / 4, bottom + 14, seconds_text(seconds * part / 4), middle=True)
    picture.box(left, bottom + 26, 14, 14, DEVICES[0])
    picture.text(left + 22, bottom + 38, "shared along an axis")
    picture.box(left + 220, bottom + 26, 14, 14, OTHERS)
    picture.text(left + 242, bottom + 38, "whole on every device")
    return picture


def ratios(plan: hap.Plan) -> Picture:
    """The shares of the devices: of their speeds together, and of each axis that is split."""
    rows = [("for comparison: float32 speed", tuple(device.flops["float32"] / 1e12 for device in plan.cluster.devices))]
    rows += [(", ".join(names), units) for units, names in split_alike(plan).items()]
    picture = Picture(900, 44 + 56 * len(rows))
    for rank, device in enumerate(plan.cluster.devices):
        picture.box(20 + 150 * rank, 10, 14, 14, DEVICES[rank])
        picture.text(42 + 150 * rank, 22, f"{rank}: {device.name}")
    for row, (name, units) in enumerate(rows):
        top, start = 48 + 56 * row, 20.0
        picture.text(20, top + 6, name, bold=row > 0)
        for rank, share in enumerate(units):
            length = 860 * share / sum(units)
            picture.box(start, top + 12, length, 26, DEVICES[rank])
            if length > 40:
                picture.text(start + length / 2, top + 30, f"{share:g}", "#ffffff", middle=True)
            start += length
    return picture


def draw() -> dict[str, str]:
    """The pictures by the names of their files."""
    graph, plan = planned()
    drawn = {"axes": axes(graph), "placements": placements(plan), "program": program(plan), "ratios": ratios(plan)}
    return {f"{name}.svg": picture.svg() for name, picture in drawn.items()}


if __name__ == "__main__":
    for name, text in draw().items():
        (HERE / "images" / name).write_text(text)
