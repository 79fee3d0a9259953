"""Profiles that were made before, by the fingerprint of the hardware."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from hap.cluster import Cluster
from hap.errors import ClusterError
from hap.profiling.fingerprint import fingerprint
from hap.profiling.machine import machine
from hap.profiling.run import profile
from hap.runtime.agree import Control

_log = logging.getLogger("hap")


def profiled(control: Control, device: torch.device) -> Cluster:
    """The cluster of a job, measured quickly unless the same hardware was measured before; called by all ranks.

    Rank 0 keeps the file, in ``$XDG_CACHE_HOME/hap`` or ``~/.cache/hap``. Delete it to measure anew.
    """
    machines = control.gather(machine(device), "comparing hardware")
    path = _folder() / f"{fingerprint(machines)}.json"
    text = control.settle(lambda: _read(path), "looking for a profile")
    if text is not None:
        return Cluster.from_json(text, source=f"profile {path}")
    _log.info("no profile of this hardware yet: measuring it; hap.profile measures longer")
    cluster = profile(device=device, quick=True)
    control.settle(lambda: _write(path, cluster), "keeping the profile")
    return cluster


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hap"


def _read(path: Path) -> str | None:
    """A profile that can be read; what cannot is measured anew."""
    try:
        text = path.read_text(encoding="utf-8")
        Cluster.from_json(text)
    except FileNotFoundError:
        return None
    except (OSError, ClusterError) as error:
        _log.warning("the profile %s cannot be used, measuring anew: %s", path, error)
        return None
    return text


def _write(path: Path, cluster: Cluster) -> None:
    """Keeps a profile; where it cannot be kept, the next job measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cluster.save(path)
    except OSError as error:
        _log.warning("the profile could not be kept in %s: %s", path, error)
