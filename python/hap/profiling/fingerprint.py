"""Which hardware was measured, as a hash: it names remembered profiles, and stands in cluster files."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import torch

from hap.cluster import Cluster
from hap.cluster.device import FAMILIES
from hap.profiling.machine import Machine, machine
from hap.runtime.agree import Control

_log = logging.getLogger("hap")

# Changes whenever the same machine would be measured otherwise: what was measured before is not used any more.
METHOD = 4
# Likewise, of jobs on several hosts only.
METHOD_OF_HOSTS = 1


def fingerprint(machines: Sequence[Machine]) -> str:
    """SHA-256 of the hardware of all ranks in order, of torch, and of what is measured how, in hexadecimal digits.

    What of the memory is free does not count.
    """
    known = [(METHOD, FAMILIES, each.host, each.name, each.memory, each.threads, each.torch) for each in machines]
    several = len({each.host for each in machines}) > 1
    text = repr((METHOD_OF_HOSTS, known)) if several else repr(known)
    return hashlib.sha256(text.encode()).hexdigest()


def warn_of_other_hardware(control: Control, cluster: Cluster, device: torch.device) -> None:
    """Logs a warning, on rank 0, where a cluster was measured elsewhere; called by all ranks.

    That may be on purpose, and is no error. A cluster without a fingerprint is not compared, which costs nothing.
    """
    if cluster.fingerprint is None:
        return
    here = fingerprint(control.gather(machine(device), "comparing hardware"))
    if here != cluster.fingerprint and control.rank == 0:
        _log.warning(
            "the cluster was measured on other hosts or other hardware, with another number of threads, or by another "
            "version of torch or hap (fingerprint %.12s, here %.12s): its times may not hold; hap profile measures "
            "again",
            cluster.fingerprint,
            here,
        )
