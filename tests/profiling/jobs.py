"""What ranks do in the tests of profiles."""

import logging
import os
import time
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist
from msgspec.structs import replace as replace_struct
from torch import nn

import hap
from hap.profiling import clock, collectives, hosts, interference, operators
from hap.profiling import run as profiling
from hap.profiling.cache import profiled
from hap.profiling.fingerprint import fingerprint
from hap.profiling.machine import Machine, machine
from hap.runtime.agree import Control

BOARD = Machine(host="a", name="card", memory=10**10, free=8 * 10**9, threads=1, torch="2")


def hurry():
    """Measures for a moment only."""
    profiling.QUICK_OPERATORS = profiling.QUICK_TRANSFERS = profiling.QUICK_INSIDE = 0.0
    clock.LEAST = operators.SIZES = collectives.LEAST = 2
    interference.SIZES = interference.SIZES[:1]


def measure(rank):
    hurry()
    return hap.profile(quick=True, device="cpu").to_json()


def measure_on_hosts(rank, names):
    """The cluster of ranks that pretend to be on these hosts, how many groups stay, and the seconds for the hosts."""
    hurry()
    real, timed = profiling.machine, hosts.measure
    seconds = []

    def pretended(device):
        return replace_struct(real(device), host=names[rank])

    def measured(*args, **kwargs):
        began = time.perf_counter()
        line = timed(*args, **kwargs)
        seconds.append(time.perf_counter() - began)
        return line

    groups = len(dist.distributed_c10d._world.pg_map)
    with mock.patch.object(profiling, "machine", pretended), mock.patch.object(hosts, "measure", measured):
        # As long as users wait for it.
        profiling.QUICK_INSIDE = 0.5
        text = hap.profile(quick=True, device="cpu").to_json()
    return text, len(dist.distributed_c10d._world.pg_map) - groups, seconds


def parallelize_without_devices(rank, folder):
    """Twice; how often that measured, and whether training equals one device."""
    hurry()
    os.environ["XDG_CACHE_HOME"] = folder
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    expected = nn.Linear(4, 4)
    with mock.patch("hap.profiling.cache.profile", wraps=profiling.profile) as spy:
        models = []
        for _ in range(2):
            model = nn.Linear(4, 4)
            model.load_state_dict(expected.state_dict())
            models.append(hap.parallelize(model))
    equal = all(torch.allclose(model(x), expected(x)) for model in models)
    dist.barrier()
    return {"measured": spy.call_count, "equal": equal}


def start_with_free_memory(rank, folder, free):
    """The cluster of a job that was measured before, where the rank has so many bytes free now; by rank in ``free``."""
    os.environ["XDG_CACHE_HOME"] = folder
    pretended = replace_struct(BOARD, free=free[rank])
    with mock.patch("hap.profiling.cache.machine", return_value=pretended):
        return profiled(Control(dist.group.WORLD), torch.device("cpu")).to_json()


def warnings_of_other_hardware(rank):
    """What is logged, and whether ranks compare their hardware: on the same, on other and on unknown hardware."""
    control = Control(dist.group.WORLD)
    here = fingerprint(control.gather(machine(torch.device("cpu")), "the test"))
    cluster = hap.Cluster(["V100"] * 2)
    logged, compared = logging.Handler(), []
    texts = []
    logged.emit = lambda record: texts.append(record.getMessage())
    gather = Control.gather

    def counted(self, value, what):
        compared.append(what)
        return gather(self, value, what)

    found = []
    logging.getLogger("hap").addHandler(logged)
    with mock.patch.object(Control, "gather", counted):
        for mark in (here, "0" * 64, None):
            texts.clear()
            compared.clear()
            hap.parallelize(nn.Linear(2, 2), devices=replace(cluster, fingerprint=mark))
            found.append(([text for text in texts if "measured" in text], compared.count("comparing hardware")))
    logging.getLogger("hap").removeHandler(logged)
    return here, found
