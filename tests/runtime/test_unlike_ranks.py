"""Ranks that differ, or of which one fails, are told so, all of them, and none hangs."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

import hap
from hap.errors import CommunicationError, HapError, RuntimeMismatchError
from hap.runtime import versions
from hap.runtime.agree import Control
from hap.runtime.session import SLOW_PLANNING
from tests import models
from tests.runtime import jobs
from tests.runtime.launch import Launcher


def _different_shapes(rank: int) -> str:
    module, args, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(2), args)
    model(*args).backward()
    x, y = args
    try:
        # One rank calls with a shape that is known, the other with a new one.
        model(x[: 6 - rank], y[: 6 - rank])
    except RuntimeMismatchError as error:
        model(*args).backward()  # the job goes on
        return str(error)
    return "no error"


def _different_modules(rank: int) -> str:
    module, args, _ = models.mlp(torch.float32, dropout=0.5)
    if rank == 1:
        module.dropout = nn.Identity()
    try:
        hap.parallelize(module, jobs.cluster(2), args)
    except RuntimeMismatchError as error:
        return str(error)
    return "no error"


def _one_cannot_trace(rank: int) -> str:
    module, args, _ = models.mlp(torch.float32)
    if rank == 1:
        module.layers[0] = nn.Linear(3, 8)
    try:
        hap.parallelize(module, jobs.cluster(2), args)
    except HapError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _different_starts(rank: int) -> dict[str, str]:
    """What is said where one rank starts otherwise than the other, in each of several ways."""
    module, args, _ = models.mlp(torch.float32)
    plan = hap.plan(copy.deepcopy(module), devices=jobs.cluster(2), example_inputs=args)
    other = hap.plan(copy.deepcopy(module), devices=jobs.cluster(2), example_inputs=[x[:4] for x in args])
    found = {}

    def start(name: str, devices: Any, examples: Any = args, **options: Any) -> None:
        with pytest.raises(RuntimeMismatchError) as error:
            hap.parallelize(module, devices, examples, **options)
        found[name] = str(error.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "__version__", f"3.{rank}.0")
        start("torch", jobs.cluster(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "code_fingerprint", lambda: f"code {rank}")
        start("code", jobs.cluster(2))
    start("plan", jobs.cluster(2), plan=(None, plan)[rank])
    start("another plan", jobs.cluster(2), plan=(plan, other)[rank])
    start("number of devices", jobs.cluster(2 + rank))
    start("devices", jobs.cluster(2) if rank else ["V100", "P100"])
    start("examples", jobs.cluster(2), (args, None)[rank])
    start("shapes", jobs.cluster(2), [x[: 6 - rank] for x in args])
    start("pins", jobs.cluster(2), pin={"layers.1.weight": Shard(rank)})
    start("compile", jobs.cluster(2), compile=(False, {"backend": "eager"})[rank])
    hap.parallelize(module, jobs.cluster(2), args)(*args).backward()
    return found


def _one_trains_longer(rank: int) -> str:
    module, args, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(2), args)
    try:
        for _ in range(2 - rank):
            model(*args).backward()
    except CommunicationError as error:
        return str(error)
    return "no error"


@pytest.mark.timeout(300)
def test_ranks_that_differ() -> None:
    with Launcher(2, timeout=20.0) as launcher:
        for message in launcher.run(_different_shapes):
            assert "differ" in message
            assert "args.0" in message
            assert "rank 0" in message
            assert "(5, 8)" in message
        for message in launcher.run(_different_modules):
            assert "the ranks differ in the traced graph" in message
        first, second = launcher.run(_one_cannot_trace)
        assert first.startswith("RuntimeMismatchError: tracing the module failed on rank 1")
        assert second.startswith("TraceError")
        first, second = launcher.run(_different_starts)
        assert first == second
        assert "differ in the version of torch (hap.parallelize): rank 0: 3.0.0; rank 1: 3.1.0" in first["torch"]
        assert re.search(r"differ in the code of hap .*rank 0: version .*, code 0; rank 1: .*, code 1", first["code"])
        assert re.search(r"differ in plan= .*rank 0: none; rank 1: a plan with the hash \w+", first["plan"])
        assert re.search(r"differ in plan= .*rank 0: a plan with the hash \w+; rank 1: a plan", first["another plan"])
        assert "differ in devices=" in first["number of devices"]
        assert re.search(r"differ in devices= .*rank 0: .*V100", first["devices"])
        assert "differ in whether example inputs are given" in first["examples"]
        assert re.search(r'differ in the input "args.0" .*rank 0: \(6, 8\).*rank 1: \(5, 8\)', first["shapes"])
        assert re.search(r"differ in pin= or forbid= .*rank 0: .*Shard\(0\).*rank 1: .*Shard\(1\)", first["pins"])
        assert re.search(r"differ in compile= .*rank 0: False; rank 1: arguments .*backend", first["compile"])
        texts = [
            "expected a number of steps",
            "is a object, which is neither a tensor",
            "expected a hap.Plan, got 'plan.json'",
            *['"args.0" is a object'] * 3,
            'holds 2 samples of the batch, but "args.0" holds 3',
            "is on meta, but the module is on cpu",
            'the attribute "dropout.p" was 0.0 and is 0.25',
        ]
        first, second = launcher.run(_one_cannot_call)
        for texts_of_rank in (first, second):
            assert "has other values on rank 1 than on rank 0" in texts_of_rank.pop(8)
            assert 'training of "layers.1" (the module at one call): rank 0: True; rank 1' in texts_of_rank.pop(8)
        for there, here, text in zip(first, second, texts, strict=True):
            assert text in here
            assert text in there
            assert re.match(r"RuntimeMismatchError: .* failed on rank 1: \w+Error: ", there)
        # Last, as it ends a process.
        launcher.send(_one_trains_longer)
        assert launcher.receive(1) == "no error"
        launcher.channels[1].send(None)
        message = launcher.receive(0)
        assert "comparing the ranks' inputs failed on rank 0 of ranks 0 to 1" in message
        assert "when asked: rank 1: its process has ended" in message


def _one_cannot_call(rank: int) -> list[str]:
    """What is said where one rank's arguments, or its module, will not do."""
    module, args, _ = models.mlp(torch.float32)
    said = []

    def fails(call: Callable[[], object]) -> None:
        with pytest.raises(HapError) as error:
            call()
        said.append(f"{type(error.value).__name__}: {error.value}")

    fails(lambda: hap.parallelize(module, jobs.cluster(2), args, drift_interval=(5, -1)[rank]))
    fails(lambda: hap.parallelize(module, jobs.cluster(2), (args, [object()])[rank]))
    options: dict[str, Any] = {"plan": ("plan.json" if rank else None)}
    fails(lambda: hap.parallelize(module, jobs.cluster(2), args, **options))
    model = hap.parallelize(module, jobs.cluster(2), args, pad_to_multiple={"args.0": (0, 2, 0), "args.1": (0, 2, 0)})
    # At the first call, and later.
    for _ in range(2):
        fails(lambda: model(*(args, (object(), args[1]))[rank]))
        model(*args).backward()
    plain, _, _ = models.mlp(torch.float32)
    model = hap.parallelize(plain, jobs.cluster(2), args)
    model(*args).backward()
    fails(lambda: model(*(args, (object(), args[1]))[rank]))
    shares = model.local_inputs(*(x[:3] for x in args))
    fails(lambda: model(*(shares, (shares[0], model.local_inputs(args[1][:2])))[rank]))
    fails(lambda: model(*(args, [x.to("meta") for x in args])[rank]))
    model(*args).backward()
    # Shares that are not marked, of one size; and a mode on one rank.
    fails(lambda: model(*(x[4 * rank : 4 * rank + 2] for x in args)))
    model.layers[1].train(rank == 0)
    fails(lambda: model(*args))
    model.layers[1].train()
    if rank == 1:
        model.dropout.p = 0.25
    fails(lambda: model(*args))
    return said


def _slow_planning(rank: int) -> str:
    control = Control(torch.distributed.group.WORLD)
    try:
        control.settle(lambda: time.sleep(4), "planning", SLOW_PLANNING)
    except CommunicationError as error:
        return str(error)
    return "no error"


def _own_group(rank: int) -> tuple[bool, float]:
    world = torch.distributed.group.WORLD
    assert world is not None
    return Control(world).group is world, world._get_backend(torch.device("cpu")).options._timeout.total_seconds()


@pytest.mark.timeout(120)
def test_timeout() -> None:
    with Launcher(2, timeout=2.0) as launcher:
        assert launcher.run(_own_group) == [(True, 2.0)] * 2
        launcher.send(_slow_planning)
        assert "planning on rank 0 lasted longer" in launcher.receive(1)
