"""A program of a few stages with exact times in plain Python: the evaluator of the tests."""

from dataclasses import dataclass

from hap.balance import Machine, Simulation, fractions
from tests.balance.written import Affine, Stage, Written


def machine(speeds, capacity=None):
    """Devices of these speeds; equal speed and memory make equal devices."""
    capacity = capacity or [1e9] * len(speeds)
    figures = list(zip(speeds, capacity, strict=True))
    return Machine(tuple(map(float, capacity)), tuple(map(float, speeds)), tuple(figures.index(f) for f in figures))


@dataclass
class Toy:
    """Work along axes with a launch overhead, and collectives: ``padded``, ``grouped``, or ``product`` (an all-to-all).

    work: (axis, seconds at speed 1); collectives: (kind, axis, seconds), ``product`` with a pair of axes.
    memory: bytes that every device holds; activations: bytes by axis, of the largest of several instants.
    """

    speeds: list
    work: list
    collectives: list = ()
    launch: float = 0.0
    message: float = 0.0
    memory: float = 0.0
    activations: tuple = ()
    instants: tuple = ({},)

    def __post_init__(self):
        self.simulations = 0

    def stages(self, shares):
        return self.written(shares).arrays()

    def written(self, shares):
        devices = range(len(self.speeds))
        stages = []
        for axis, seconds in self.work:
            terms = [Affine(self.launch * (shares[axis][d] > 0), {axis: seconds / self.speeds[d]}) for d in devices]
            stages.append(Stage("compute", tuple(terms)))
        for kind, axis, seconds in self.collectives:
            if kind == "padded":
                terms = [Affine(self.message, {axis: seconds}) for _ in devices]
            elif kind == "grouped":
                messages = sum(self.message for d in devices if shares[axis][d] > 0)
                terms = [Affine(messages + seconds, {})] * len(self.speeds)
            else:
                # seconds * a (1 - b), linearised.
                first, second = axis
                terms = [
                    Affine(
                        self.message + seconds * shares[first][d] * shares[second][d],
                        {first: seconds * (1 - shares[second][d]), second: -seconds * shares[first][d]},
                    )
                    for d in devices
                ]
            stages.append(Stage("collective", tuple(terms)))
        peaks = [Affine(self.memory, {**dict(self.activations), **instant}) for instant in self.instants]
        memory = tuple(max((peak.at(shares, d), number) for number, peak in enumerate(peaks)) for d in devices)
        memory = tuple(peaks[number] for _, number in memory)
        return Written(tuple(devices), tuple(stages), memory)

    def simulate(self, splits):
        self.simulations += 1
        shares = fractions(splits)
        stages = self.written(shares)
        compute = [
            sum(s.terms[d].at(shares, d) for s in stages.stages if s.kind == "compute") for d in range(len(self.speeds))
        ]
        communication = sum(
            max(s.terms[d].at(shares, d) for d in range(len(self.speeds)))
            for s in stages.stages
            if s.kind == "collective"
        )
        memory = tuple(term.at(shares, d) for d, term in enumerate(stages.memory))
        return Simulation(stages.arrays().seconds(shares), tuple(compute), communication, memory)
