"""What single libraries, and single modules of PyTorch, need while they are captured, one file each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from hap.trace.compat import batch_norm, distributions, functional, recurrent, transformers


def is_hidden_side_effect(source: str) -> bool:
    """Whether a change of Python state that Dynamo reports is a library's own business."""
    return transformers.is_hidden_side_effect(source) or distributions.is_hidden_side_effect(source)


@contextlib.contextmanager
def compatible(module: nn.Module) -> Iterator[None]:
    """Within, the libraries that ``module`` uses can be captured; afterwards their settings are as they were."""
    recurrent.prepare(module)
    with (
        functional.compatible(),
        distributions.compatible(),
        batch_norm.compatible(module),
        transformers.compatible(module),
    ):
        yield
