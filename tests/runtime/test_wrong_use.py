"""Wrong use of ``hap.parallelize`` gives a clear error, and leaves the module as it was."""

from __future__ import annotations

import copy
import dataclasses
import io
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import hap
from hap.cluster import CollectiveCost
from hap.errors import HapError, PlanError, RuntimeMismatchError
from hap.runtime import alike
from hap.runtime.agree import Control
from tests import models
from tests.runtime import jobs
from tests.runtime.launch import Launcher


def alone() -> tuple[Any, tuple[Any, ...]]:
    """The MLP on a job of one process, with its inputs."""
    module, args, _ = models.mlp(torch.float32)
    return hap.parallelize(module, jobs.cluster(1)), args


def test_not_a_module() -> None:
    with pytest.raises(HapError, match=r"expected a torch\.nn\.Module, got function"):
        hap.parallelize(lambda x: x, ["V100"])  # type: ignore[arg-type]


def test_other_number_of_devices() -> None:
    module, _, _ = models.mlp()
    with pytest.raises(RuntimeMismatchError, match="the job has 1 process, but devices= lists 3"):
        hap.parallelize(module, jobs.cluster(3))


def test_twice() -> None:
    model, _ = alone()
    with pytest.raises(HapError, match="parallel already"):
        hap.parallelize(model, jobs.cluster(1))


def test_gradient_left_over() -> None:
    module, args, _ = models.mlp(torch.float32)
    module(*args).backward()
    with pytest.raises(HapError, match="zero_grad"):
        hap.parallelize(module, jobs.cluster(1), args)


def test_second_backward() -> None:
    model, args = alone()
    loss = model(*args)
    loss.backward()
    with pytest.raises(HapError, match="second time"):
        loss.backward()


def test_gradients_of_gradients() -> None:
    model, args = alone()
    with pytest.raises(HapError, match="create_graph=True: hap computes no gradients of gradients"):
        torch.autograd.grad(model(*args), list(model.parameters()), create_graph=True)


def test_first_call_in_inference_mode() -> None:
    module, args, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(1))
    with torch.inference_mode():
        found = model(*(x.clone() for x in args))
    loss = model(*args)
    assert not found.requires_grad
    torch.testing.assert_close(found.clone(), loss.detach())
    loss.backward()


def test_parameters_changed_before_backward() -> None:
    model, args = alone()
    loss = model(*args)
    with torch.no_grad():
        model.layers[1].weight.add_(1.0)
    with pytest.raises(HapError, match=r"layers\.1\.weight.*changed in place"):
        loss.backward()


def test_input_on_another_device() -> None:
    model, args = alone()
    with pytest.raises(HapError, match=r'"args\.0" is on meta, but the module is on cpu'):
        model(args[0].to("meta"), args[1])


def test_plan_of_another_shape() -> None:
    module, args, _ = models.mlp(torch.float32)
    plan = hap.plan(copy.deepcopy(module), devices=jobs.cluster(1), example_inputs=[x[:2] for x in args])
    with pytest.raises(PlanError, match="another module"):
        hap.parallelize(module, jobs.cluster(1), args, plan=plan)


def test_left_as_it_was_where_tracing_fails() -> None:
    module = nn.Linear(2, 2)
    weight = module.weight
    with pytest.raises(HapError):
        hap.parallelize(module, jobs.cluster(1), (torch.ones(3, 3),))
    assert module.weight is weight
    assert module.weight.shape == (2, 2)


@pytest.mark.parametrize("shape", [(1024, 1, 28, 28), (4096, 128), (4099, 225)])
def test_unlike_batches_that_begin_alike(shape: tuple[int, ...]) -> None:
    """Images with empty borders, and texts that begin with the same mark: rows differ within alone."""
    batches = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    for batch in batches:
        batch[..., 0] = 0.0
        batch[..., 14] = 0.0

    class Two(Control):
        def __init__(self) -> None:
            self.size = 2

        def gather(self, value: Any, what: str) -> list[Any]:
            if value is None:
                return [None, None]  # what has failed
            return [value, {name: alike._projection(batches[1]) for name in value}]

    with pytest.raises(RuntimeMismatchError, match=r'"args\.0" has other values on rank 1'):
        alike.check_alike(Two(), (batches[0],), {})
    batches[1] = batches[0].clone()
    alike.check_alike(Two(), (batches[0],), {})


class LogitsAndLoss(nn.Module):
    """Returns its logits and the loss beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.layer(x)
        return logits, logits.square().mean(), x * 2.0


def _loss_outside(rank: int, ranks: int = 2) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    model = hap.parallelize(LogitsAndLoss(), jobs.cluster(ranks), (x,))
    logits, loss, doubled = model(x)
    assert logits.full_tensor().requires_grad
    assert logits.local.requires_grad
    assert not doubled.full_tensor().requires_grad
    (loss + doubled.full_tensor().sum()).backward()
    _, loss, _ = model(x)
    with pytest.raises(HapError, match=r'the output "0" stands beside a loss.*carries no gradient'):
        (loss + logits.full_tensor().sum()).backward()
    # Metrics.
    assert logits.full_tensor().detach().numpy().shape == (6, 4)
    with torch.no_grad():
        assert not logits.full_tensor().requires_grad
        assert not model(x)[0].full_tensor().requires_grad


def test_loss_computed_outside() -> None:
    _loss_outside(0, 1)


def test_any_seed() -> None:
    losses = []
    for seed in (-1, 2**63, 0):
        module, args, _ = models.mlp(torch.float32, dropout=0.5)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = hap.parallelize(module, jobs.cluster(1), args)
        model(*args).backward()
        losses.append(float(model(*args).detach()))
    assert len(set(losses)) == 3


def test_plan_stays_rejected() -> None:
    module, args, _ = models.mlp(torch.float32)
    plan = hap.plan(copy.deepcopy(module), devices=jobs.cluster(1), example_inputs=args)
    model = hap.parallelize(module, jobs.cluster(1), plan=plan)
    for _ in range(2):
        with pytest.raises(PlanError, match="another module"):
            model(*(x[:2] for x in args))
    model(*args).backward()
    assert model.plan.fingerprints.graph == plan.fingerprints.graph
    model(*(x[:2] for x in args)).backward()  # planned anew


def test_a_plan_holds_however_well_its_collectives_were_measured() -> None:
    module, args, _ = models.mlp(torch.float32)

    def measured(**figures: float) -> hap.Cluster:
        cost = CollectiveCost(**{"latency": 1e-5, "bandwidth": 1e9} | figures)
        return dataclasses.replace(jobs.cluster(1), collectives={"all_reduce/builtin": cost})

    plan = hap.plan(copy.deepcopy(module), devices=measured(error=0.1), example_inputs=args)
    with pytest.raises(PlanError, match="for other devices"):
        hap.parallelize(module, measured(latency=1e-6), args, plan=plan)
    hap.parallelize(module, measured(), args, plan=plan)


def test_constraints_beside_a_plan() -> None:
    module, args, _ = models.mlp(torch.float32)
    plan = hap.plan(copy.deepcopy(module), devices=jobs.cluster(1), example_inputs=args)
    given: list[dict[str, Any]] = [
        {"forbidden_axes": ["batch"]},
        {"required_axis": "batch"},
        {"pin": {"": Replicate()}},
        {"forbid": {"": Shard(0)}},
        {"optimiser": "SGD"},
    ]
    for options in given:
        with pytest.raises(HapError, match=f"{next(iter(options))}= has no effect on a plan made before"):
            hap.parallelize(module, jobs.cluster(1), plan=plan, **options)


def test_constraints_that_name_nothing() -> None:
    module, args, _ = models.mlp(torch.float32)
    with pytest.raises(PlanError, match="expected Replicate"):
        hap.parallelize(module, jobs.cluster(1), pin={"": "R"})  # type: ignore[dict-item]
    model = hap.parallelize(module, jobs.cluster(1), pin={"layer": Replicate()})
    with pytest.raises(PlanError, match='is called "layer"; near are layers'):
        model(*args)


def test_copies_of_a_parallel_module() -> None:
    model, _ = alone()
    for copied in (copy.deepcopy, copy.copy, lambda m: torch.save(m, io.BytesIO())):
        with pytest.raises(HapError, match=r"hap\.full_state_dict"):
            copied(model)
    torch.save(model.state_dict(), io.BytesIO())


def _held_parameter(rank: int) -> str:
    module, args, _ = models.mlp(torch.float32)
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in module.named_parameters()}
    last = list(before)[-1]
    layouts = {name: parameter.shape for name, parameter in module.named_parameters()}
    references = [weakref.ref(parameter) for parameter in module.parameters()] if rank == 1 else []
    try:
        hap.parallelize(module, jobs.cluster(2), args, pin={last: Shard(0)})
        message = f"no error: {last} {layouts}"
    except HapError as error:
        message = str(error)
    for name, parameter in module.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    references.clear()
    model = hap.parallelize(module, jobs.cluster(2), args, pin={last: Shard(0)})
    model(*args).backward()
    return message


def _optimisers(rank: int) -> None:
    module, args, _ = models.mlp(torch.float32)
    whole, _, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(2), args)
    for one in (model, whole):
        one(*args).backward()
    torch.optim.Adafactor(whole.parameters()).step()
    torch.optim.Adam(model.parameters()).step()
    with pytest.raises(HapError, match=r"Adafactor does not work element by element.*pin={.*Replicate\(\)}"):
        torch.optim.Adafactor(model.parameters()).step()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    with pytest.raises(HapError, match=r"takes the norm of this rank alone.*hap\.clip_grad_norm_ has the same"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(map(torch.equal, before, after))
    torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    with pytest.raises(HapError, match="LBFGS does not work element by element"):
        torch.optim.LBFGS(model.parameters()).step(lambda: 0.0)


def _states(rank: int) -> None:
    """A rank's own state goes back; another rank's, another plan's and a whole one are refused."""
    pins: list[dict[str, Any]] = [{"layers.1.weight": Shard(0)}, {"layers.1.weight": Shard(1)}]
    whole = models.mlp(torch.float32)[0].state_dict()
    devices = hap.Cluster([hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)] * 2)
    several = []
    for pin in pins:
        module, args, _ = models.mlp(torch.float32)
        several.append(hap.parallelize(module, devices, args, pin=pin))
    model, other = several
    written = io.BytesIO()
    torch.save(model.state_dict(), written)
    states: list[Any] = [None] * 2
    torch.distributed.all_gather_object(states, written.getvalue())
    mine, theirs = (torch.load(io.BytesIO(states[each])) for each in (rank, 1 - rank))
    assert mine["layers.1.weight"].shape == theirs["layers.1.weight"].shape
    before = model.state_dict()["layers.1.weight"].clone()
    for target, state, text in (
        (model, theirs, f"the shards of rank {1 - rank} of 2 .* and this is rank {rank} of 2"),
        (other, mine, f"the shards of rank {rank} of 2 .* and this is rank {rank} of 2"),
        (model, whole, r'the whole "layers\.1\.weight", and this rank has a shard'),
        (nn.ModuleList([model]), nn.ModuleList([other]).state_dict(), "the shards of rank"),
    ):
        with pytest.raises(HapError, match=text):
            target.load_state_dict(state)
    assert torch.equal(model.state_dict()["layers.1.weight"], before)
    with torch.no_grad():
        model.layers[1].weight.zero_()
    assert not model.load_state_dict(mine).missing_keys
    assert torch.equal(model.state_dict()["layers.1.weight"], before)


@pytest.mark.timeout(300)
def test_two_ranks() -> None:
    with Launcher(2, timeout=20.0) as launcher:
        for message in launcher.run(_held_parameter):
            assert "cannot become a shard in place" in message
        launcher.run(_optimisers)
        launcher.run(_states)
        launcher.run(_loss_outside)
