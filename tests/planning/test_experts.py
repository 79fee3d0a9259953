"""Expert parallelism comes out of the search: nobody says where experts lie, or that tokens travel to them."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from hap.program import Compute, Convert, InputInstruction, OutputInstruction
from hap.rules import BATCH
from tests.runtime.one_device import step
from tests.zoo.moe import GShard
from tests.zoo.plans import RANKS, best_plan


class Mixture(nn.Module):
    """A linear layer and a mixture of six experts, whose weights are far larger than what is sent to them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.fc = nn.Linear(16, 16)
            self.mixture = GShard(experts=6, features=16, hidden=64, capacity=6)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers, balancing = self.mixture(self.fc(x))
        return answers.square().mean() + 0.01 * balancing


def test_tokens_travel_to_experts_that_are_shared_unevenly() -> None:
    """Two all-to-alls in the forward, there and back, and two in the backward; no expert's weight ever moves."""
    x = torch.randn(6, 12, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = step(Mixture(), (x,), {})
    axes, experts = whole.axes, "mixture.gate.weight.0"
    program, splits = best_plan(axes, ())
    names = ["mixture.experts.up", "mixture.experts.down"]
    stored = {i.tensor: i.placement for i in program.instructions if isinstance(i, InputInstruction)}
    gradients = {i.name: i.placement for i in program.instructions if isinstance(i, OutputInstruction)}
    for name in names:
        assert stored[name] == gradients[name] == ("S0",)
        tensor = next(value.tensor for value in axes.graph.inputs if value.name == name)
        assert axes.axes[axes.occurrences[tensor][0].axis].name == experts

    numbers = {tensor.name: number for number, tensor in enumerate(axes.graph.tensors)}

    def along(tensor: str, placement: tuple[str, ...]) -> str:
        return axes.axes[axes.occurrences[numbers[tensor]][int(placement[0][1:])].axis].name

    conversions = [i for i in program.instructions if isinstance(i, Convert)]
    travels = [i for i in conversions if i.conversion == "all_to_all"]
    assert Counter((along(i.tensor, i.source), along(i.tensor, i.target)) for i in travels) == {
        (BATCH, experts): 2,
        (experts, BATCH): 2,
    }
    weights = {axes.graph.tensors[numbers[name]].shape for name in names}
    assert not [i for i in conversions if axes.graph.tensors[numbers[i.tensor]].shape in weights]
    products = Counter(
        i.axis for i in program.instructions if isinstance(i, Compute) and i.target == "aten.bmm.default"
    )
    # Both layers of the experts, their inputs' gradients and their weights'; dispatch and combine go with the batch.
    assert products[experts] == 6
    assert set(products) == {experts, BATCH}
    assert splits[experts] == splits[BATCH] == [3, 2, 1]
    whole.check(program, splits, RANKS, 1e-10)
