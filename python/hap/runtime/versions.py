"""What must be the same on all ranks before anything else is compared: the installed software."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import torch

from hap.planning.api import version


def versions() -> dict[str, str]:
    """The versions that ranks compare."""
    return {
        "the version of torch": str(torch.__version__),
        "the code of hap": f"version {version()}, {code_fingerprint()}",
    }


@cache
def code_fingerprint() -> str:
    """A hash of hap's Python files. Its extension module may be built otherwise for each kind of machine."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
