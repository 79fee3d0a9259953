"""What a model of the zoo states of itself: ``@entry`` stands before its builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.models import Built

SHARDED = 0.95
"""The least share of the FLOPs of a model that its best plan splits over the devices."""

FLOAT32 = "the normalisation or the loss is computed in float32 whatever the element type of the parameters"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model, and what its tests expect.

    Attributes:
        build: makes the module, in float64 and in training mode, and the arguments of its call.
        sharded: by pattern of axes' names, the least share of FLOPs that the best plan splits along these axes; some
            way below what it reaches, because axes that are as good as each other take turns.
        without_batch: the same for the best plan that may not split the batch.
        share_without_batch: the least share of all FLOPs that the latter splits.
        missing: why that is less than ``SHARDED``.
        random: whether the model draws random numbers.
        float32: why results agree to 1e-5 only; empty where they agree to 1e-10.
    """

    build: Callable[[], Built]
    sharded: Mapping[str, float]
    without_batch: Mapping[str, float]
    share_without_batch: float
    missing: str
    random: bool
    float32: str

    @property
    def tolerance(self) -> float:
        """Relative error of results that differ in the order of sums only."""
        return 1e-5 if self.float32 else 1e-10


ZOO: dict[str, Entry] = {}
"""All entries by name."""


def entry(
    *,
    sharded: Mapping[str, float] | None = None,
    without_batch: Mapping[str, float],
    share_without_batch: float = SHARDED,
    missing: str = "",
    random: bool = True,
    float32: str = "",
) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Adds the builder that follows to the zoo, under its name. ``sharded`` is 95% along the batch by default."""

    def add(build: Callable[[], Built]) -> Callable[[], Built]:
        name = build.__name__
        assert name not in ZOO, f"there are two entries {name}"
        assert (share_without_batch < SHARDED) == bool(missing), (
            f"{name}: say why so little is sharded without the batch"
        )
        ZOO[name] = Entry(
            build=build,
            sharded={"batch": 0.95} if sharded is None else sharded,
            without_batch=without_batch,
            share_without_batch=share_without_batch,
            missing=missing,
            random=random,
            float32=float32,
        )
        return build

    return add
