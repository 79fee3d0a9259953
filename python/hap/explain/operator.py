"""What the search weighed for one operator: each of its choices, priced by the core in the plan's own program."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from hap.errors import PlanError
from hap.explain.data import Alternative, Move
from hap.explain.use import first_runs
from hap.planning.engine import Constraints, NoProgramError, Prices, Synthesis, parse_program
from hap.planning.pins import as_given, read_pins
from hap.planning.prices import busiest
from hap.planning.problem import first_prices
from hap.planning.setup import make_problem
from hap.planning.subsets import news
from hap.program import Compute, Convert, InputInstruction, OutputInstruction

if TYPE_CHECKING:
    from hap.cluster import Cluster
    from hap.planning.plan import Plan
    from hap.planning.problem import Problem
    from hap.rules import AxisGraph, Choice


def alternatives(plan: Plan, axes: AxisGraph, operator: str) -> list[Alternative]:
    """Every choice of an operator that the plan's constraints leave, the fastest first.

    All other operators run as in the plan, and all tensors are stored so; conversions are those that cost least then.
    Where the plan runs operators twice to save memory, their first runs count, and the plan's own choice is priced
    without the second runs, too.

    Args:
        plan: the plan.
        axes: of :func:`graph_of`.
        operator: its name.

    Raises:
        PlanError: the program does not run it.
    """
    from hap.rules import divided

    axes = divided(axes, plan.classes)
    runs = first_runs(plan.program)
    if operator not in runs:
        raise PlanError(f'the program has no operator "{operator}"')
    whole = _problem(plan, axes)
    own = whole.engine.simulate(msgspec.json.encode(plan.program).decode(), plan.splits)
    frame = _Frame(
        plan=plan,
        axes=axes,
        place=[each.name for each in axes.graph.operators].index(operator),
        chosen=[_chosen(axes, index, runs.get(each.name)) for index, each in enumerate(axes.graph.operators)],
        stored=_as_stored(plan, axes),
        asked=whole.constraints,
        prices=(busiest(own, whole.engine.cluster.hidden), first_prices(whole, plan.splits)),
    )
    forbidden = {*plan.forbidden_axes}
    choices = (each for each in axes.choices[frame.place] if _along(axes, each) not in forbidden)
    found = [frame.priced(choice) for choice in choices]
    return sorted(found, key=lambda each: (each.step is None, each.step, not each.chosen))


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the choices of one operator are priced in.

    Attributes:
        plan: the plan.
        axes: its graph, with its split classes.
        place: the operator's index there.
        chosen: by operator, the choice that the plan takes; ``None`` where it runs none.
        stored: inputs and outputs of the graph as the plan has them.
        asked: the plan's constraints.
        prices: those of the plan's busiest resources, and of the devices that its splits keep busy longest.
    """

    plan: Plan
    axes: AxisGraph
    place: int
    chosen: Sequence[Choice | None]
    stored: Constraints
    asked: Constraints
    prices: Sequence[Prices]

    def priced(self, choice: Choice) -> Alternative:
        """The choice, with all else as in the plan, and with all else free."""
        axes, plan = self.axes, self.plan
        node = axes.graph.operators[self.place]
        taken = {index: each for index, each in enumerate(self.chosen) if each is not None} | {self.place: choice}
        count = len(plan.predicted_memory)
        compute, moves, step, obstacle = [0.0] * count, list[Move](), None, None
        try:
            # Computation is given: only communication can be saved.
            problem, made = self._made(taken, self.stored, None)
            step = self._seconds(problem, made)
            numbers = (*node.operands, *(each for each in node.results if each is not None))
            compute, moves = _own(problem, plan, made, node.name, {axes.graph.tensors[each].name for each in numbers})
        except NoProgramError as error:
            obstacle = str(error)
        chosen = choice == self.chosen[self.place]
        if step is not None and chosen:
            step = min(step, plan.predicted_time)
        found = [] if step is None else [step]
        for prices in self.prices:
            with contextlib.suppress(NoProgramError):
                found.append(self._seconds(*self._made({self.place: choice}, self.asked, prices)))
        return Alternative(
            chosen=chosen,
            axis=_along(axes, choice),
            composite=choice.composite,
            inputs=[",".join(map(str, each)) for each in choice.inputs],
            outputs=[",".join(map(str, each)) for each in choice.outputs],
            compute=compute,
            conversions=moves,
            step=step,
            free_step=min(found, default=None),
            obstacle=obstacle,
        )

    def _seconds(self, problem: Problem, made: Synthesis) -> float:
        """Of a step, until devices that are left out have the loss."""
        told = news(self.plan.cluster) if self.plan.left_out else 0.0
        return problem.engine.simulate(made.program, self.plan.splits).seconds + told

    def _made(
        self, taken: Mapping[int, Choice], constraints: Constraints, prices: Prices | None
    ) -> tuple[Problem, Synthesis]:
        """The cheapest program in which operators run so, by default in communication alone.

        Raises:
            NoProgramError: there is none.
        """
        axes = self.axes
        choices = list(axes.choices)
        results = dict(constraints.placements)
        for index, choice in taken.items():
            # A graph offers the replicated choice always; it is ruled out by what it makes.
            choices[index] = tuple(dict.fromkeys((axes.choices[index][0], choice)))
            made = (tensor for tensor in axes.graph.operators[index].results if tensor is not None)
            for tensor, placement in zip(made, choice.outputs, strict=True):
                results[axes.graph.tensors[tensor].name] = (",".join(map(str, placement)),)
        problem = _problem(self.plan, replace(axes, choices=tuple(choices)))
        if prices is None:
            devices = len(problem.engine.machine)
            prices = Prices((1.0 / devices,) * devices, 0.0)
        bound = msgspec.structs.replace(constraints, placements=results)
        found = problem.engine.synthesise(self.plan.splits, prices, bound)
        runs = first_runs(parse_program(found.program))
        operator = axes.graph.operators[self.place].name
        if _chosen(axes, self.place, runs[operator]) != taken[self.place]:
            raise NoProgramError("the whole operator on every device makes the same, and is cheaper")
        return problem, found


def _own(
    problem: Problem, plan: Plan, made: Synthesis, operator: str, tensors: set[str]
) -> tuple[list[float], list[Move]]:
    """Seconds of an operator by rank, and conversions of these tensors, where nothing overlaps."""
    engine = problem.engine.on(_lonely(problem))
    instructions = parse_program(made.program).instructions
    line = engine.timeline(made.program, plan.splits)
    seconds: dict[tuple[int, int], float] = {}
    sent: dict[int, float] = {}
    for event in line.timeline:
        span = event.end - event.start
        if event.stream == "computation":
            key = (event.device, event.instruction)
            seconds[key] = seconds.get(key, 0.0) + span
        elif event.device == line.kinds[0]:
            sent[event.instruction] = sent.get(event.instruction, 0.0) + span
    compute = [0.0] * len(plan.predicted_memory)
    moves = []
    for number, each in enumerate(instructions):
        if isinstance(each, Compute) and each.operator == operator:
            for rank, kind in zip(plan.stage.devices, line.kinds, strict=True):
                compute[rank] += seconds.get((kind, number), 0.0)
        elif isinstance(each, Convert) and each.tensor in tensors:
            source, target = ",".join(each.source), ",".join(each.target)
            moves.append(Move(each.conversion, each.tensor, source, target, sent.get(number, 0.0)))
    return compute, moves


def _lonely(problem: Problem) -> Cluster:
    """The problem's cluster, where communication does not overlap computation."""
    return replace(problem.engine.cluster, overlap=0.0, interference=0.0, contention=0.0)


def _problem(plan: Plan, axes: AxisGraph) -> Problem:
    """The plan's problem on its active devices, for its graph with other choices."""
    problem = make_problem(
        axes,
        plan.cluster,
        forbidden_axes=plan.forbidden_axes,
        required_axis=plan.required_axis,
        pins=read_pins(as_given(plan.pin), as_given(plan.forbid)),
        optimiser=plan.optimiser,
    )
    return problem.among(plan.stage.devices)


def _as_stored(plan: Plan, axes: AxisGraph) -> Constraints:
    """Inputs and outputs of the graph as the plan has them."""
    outputs = {each.name for each in axes.graph.outputs if each.kind == "output"}
    stored, ended = {}, {}
    for each in plan.program.instructions:
        if isinstance(each, InputInstruction):
            stored[each.tensor] = each.placement
        elif isinstance(each, OutputInstruction) and each.name in outputs:
            ended[each.name] = each.placement
    return Constraints(placements=stored, outputs=ended)


def _along(axes: AxisGraph, choice: Choice) -> str | None:
    return None if choice.axis is None else axes.axes[choice.axis].name


def _chosen(axes: AxisGraph, index: int, run: Compute | None) -> Choice | None:
    """The choice of an operator that a program takes; ``None`` where it does not run it."""
    if run is None:
        return None

    def same(choice: Choice) -> bool:
        inputs = [tuple(map(str, each)) for each in choice.inputs]
        outputs = [tuple(map(str, each)) for each in choice.outputs]
        return (_along(axes, choice), choice.composite, inputs, outputs) == (
            run.axis,
            run.composite,
            [placement for _, placement in run.inputs],
            [placement for _, placement in run.outputs],
        )

    return next(choice for choice in axes.choices[index] if same(choice))
