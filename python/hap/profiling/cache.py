"""Profiles that were made before, by the fingerprint of the hardware."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from hap.cluster import Cluster
from hap.errors import ClusterError
from hap.profiling.fingerprint import fingerprint
from hap.profiling.free import as_free_now
from hap.profiling.machine import Machine, machine
from hap.profiling.run import profile
from hap.runtime.agree import Control

_log = logging.getLogger("hap")


def profiled(control: Control, device: torch.device) -> Cluster:
    """The cluster of a job, measured quickly unless the same hardware was measured before; called by all ranks.

    Rank 0 keeps the file, in ``$XDG_CACHE_HOME/hap`` or ``~/.cache/hap``. Delete it to measure anew. Times are
    remembered; of memory counts what is free now, where that differs by more than 10%.
    """
    machines = control.gather(machine(device), "comparing hardware")
    path = _folder() / f"{fingerprint(machines)}.json"
    text = control.settle(lambda: _remembered(path, machines), "looking for a profile")
    if text is not None:
        return Cluster.from_json(text, source=f"profile {path}")
    _log.info("no profile of this hardware yet: measuring it; hap.profile measures longer")
    cluster = profile(device=device, quick=True)
    control.settle(lambda: _write(path, cluster), "keeping the profile")
    return cluster


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hap"


def _remembered(path: Path, machines: Sequence[Machine]) -> str | None:
    """A profile that can be read, as a cluster file, by the machines' free memory; what cannot is measured anew."""
    try:
        kept = Cluster.from_json(path.read_bytes())
        if len(kept.devices) != len(machines):
            raise ClusterError(f"expected {len(machines)} devices, got {len(kept.devices)}")
    except FileNotFoundError:
        return None
    except (OSError, ClusterError) as error:
        _log.warning("the profile %s cannot be used, measuring anew: %s", path, error)
        return None
    return as_free_now(kept, machines).to_json()


def _write(path: Path, cluster: Cluster) -> None:
    """Keeps a profile; where it cannot be kept, the next job measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cluster.save(path)
    except OSError as error:
        _log.warning("the profile could not be kept in %s: %s", path, error)
