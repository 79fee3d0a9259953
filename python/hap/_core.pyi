"""The Rust core. JSON in; JSON, arrays or random words out. Wrong arguments raise ``ValueError`` and say what is wrong.

The formats are those of ``rust/graph.rs`` (``hap-graph-1``), ``rust/cluster.rs`` (``hap-cluster-1``) and
``rust/program.rs``. All methods release the interpreter's lock.

What may take long answers Ctrl-C, and takes a callback ``progress(bound, cost, work, variables)``. It is called about
every 20 ms, with the lower bound so far, the cost of the best assignment so far (infinite before the first), the table
entries visited, and the variables not yet decided. What it raises ends the call, and is raised from there.
"""

from collections.abc import Callable, Sequence
from typing import final

__all__ = ["Graph", "LimitReachedError", "WarmStart", "random_words", "solve"]

class LimitReachedError(ValueError):
    """The limits ended a synthesis, or a solve, before it had found anything."""

@final
class WarmStart:
    """What syntheses of one graph, or solves of like problems, leave for later ones."""

    def __new__(cls) -> WarmStart:
        """Knows nothing."""

    def certificate(self) -> str:
        """Why no solution of the last problem costs less than a bound: ``hap-certificate-1``.

        Of a synthesis, the problem is that of :meth:`Graph.problem`. The bound is the one that was returned, unless a
        search proved more than the steps of a certificate can say. :func:`hap.planning.certificate.check` is a checker.
        Raises ``ValueError`` where there was none, or the last one failed.
        """

@final
class Graph:
    """A training step, parsed and validated once. Immutable."""

    def __new__(cls, json: bytes) -> Graph:
        """Reads ``hap-graph-1``."""

    def synthesise(
        self,
        cluster: str,
        request: str,
        progress: Callable[[float, float, int, int], object] | None = None,
        warm: WarmStart | None = None,
        options: str = "{}",
    ) -> str:
        """The cheapest program, proven so unless a limit was reached.

        Args:
            cluster: ``hap-cluster-1``.
            request: ``{"splits", "prices": {"weights", "theta", "memory"}, "constraints": {"forbidden_axes",
                "allowed_axes", "placements", "outputs", "require_axis"}, "random": null | seed, "limits"}``; all but
                the splits have defaults, see ``rust/synthesis/request.rs``.
            progress: called now and then.
            warm: what earlier calls have found, which saves time where costs have changed little; takes up what this
                one finds. Of several programs of equal cost another one may be found.
            options: as for :meth:`simulate`.

        Returns:
            ``{"program", "cost", "priced_memory", "bound", "search_gap", "seconds", "table_entries", "states",
            "simulation"}``; bytes by device only where memory has prices; the simulation is what :meth:`simulate` says
            of the program.
        """

    def problem(self, cluster: str, request: str) -> str:
        """The weighted constraint problem of a request, as ``hap-cfn-1``: what other solvers can check."""

    def simulate(self, cluster: str, program: str, splits: str, options: str) -> str:
        """Simulates a step of a program.

        Args:
            cluster: ``hap-cluster-1``.
            program: the program; it is validated first.
            splits: ``{axis name: [units per device]}``, for every axis.
            options: ``{"optimiser_tensors": 2, "temporaries": {"together": 0, "in_turn": 0, "carried": 0}, "timeline":
                false, "kinds": false, "holders": 0}``, these being the defaults. Temporaries are tensors that the
                optimiser makes while it steps: for all parameters, for one after the other, left of the one before.
                With ``kinds`` the timeline is that of the first device of each kind.

        Returns:
            ``{"seconds", "compute": [seconds per device], "communication": seconds, "memory": [bytes per device],
            "memory_parts": [{"parameters", "gradients", "optimiser", "activations", "buffers"}],
            "holders": [[{"part", "tensor", "placement", "bytes"}] per device],
            "timeline": [{"device", "stream": "computation" | "communication", "instruction", "name", "start", "end"}],
            "kinds": [first device of its kind per device],
            "memory_timeline": [[[seconds, bytes held from then on]] per device, or per kind in the order of the first
            devices]}``, the last four only if asked for.
        """

    def stages(
        self, cluster: str, program: str, shares: str, options: str = "{}"
    ) -> tuple[list[str], bytes, bytes, bytes, bytes]:
        """The step and the memory as affine functions of the shares, linearised at these.

        Args:
            cluster: ``hap-cluster-1``.
            program: the program; it is validated first.
            shares: ``{axis name: [fraction per device]}``, for every axis, each list summing to one.
            options: as for :meth:`simulate`.

        Returns:
            The names of the axes that matter, in alphabetical order, and arrays: the kind by [device], how many such
            stages there are and whether they are computation (not collectives) by [stage], and terms by [kind, stage,
            1 + axis]: a constant and a slope for each axis, in seconds; behind the last stage in bytes, those of the
            peak. Kinds and numbers of stages are int64, terms float64, and the rest bytes. The step is about the sum
            over stages of their number times the maximum over devices.
        """

    def validate(self, program: str) -> None:
        """Proves that a program computes this graph; the error names the instruction and what is missing."""

def solve(
    problem: str,
    limits: str,
    progress: Callable[[float, float, int, int], object] | None = None,
    warm: WarmStart | None = None,
) -> str:
    """Solves a weighted constraint problem exactly.

    Args:
        problem: ``hap-cfn-1``: ``{"format", "name", "domains": [labels per variable], "factors": [{"scope",
            "costs"}]}``, costs row-major, ``null`` for infinite.
        limits: ``{"table_entries": n, "work": n, "seconds": null | s}``; absent ones take their defaults.
        progress: called now and then.
        warm: what earlier calls have found; takes up what this one finds, its certificate among it.

    Returns:
        ``{"assignment": [label per variable], "cost", "bound", "gap", "seconds", "table_entries", "states"}``; the
        gap is 0 where the assignment is proven optimal.
    """

def random_words(
    seed: int, step: int, operator: int, sizes: Sequence[int], starts: Sequence[int], lengths: Sequence[int]
) -> bytearray:
    """The random words of an operator in one step, at the positions of a box of a tensor (``rust/random.rs``).

    Args:
        seed: of 64 bits, signed.
        step: of 32 bits, unsigned.
        operator: number of the operator in its graph, of 32 bits, unsigned.
        sizes: of the whole tensor.
        starts: where the box starts along each dimension.
        lengths: how many positions it holds there.

    Returns:
        Four bytes for each position, in order, as the machine orders them.
    """
