"""What all tests share: derandomised hypothesis, one thread, the logger as it was before each."""

import logging
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# Tests name no number of examples of their own unless they need fewer; `make test-full` raises it for all of them.
settings.register_profile("default", derandomize=True, deadline=None, max_examples=20, suppress_health_check=_SLOW)
settings.register_profile(
    "full",
    derandomize=False,
    deadline=None,
    print_blob=True,
    max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "200")),
    suppress_health_check=_SLOW,
)
settings.load_profile("full" if "HAP_TEST_EXAMPLES" in os.environ else "default")

torch.set_num_threads(1)

# pytest attaches its handler to this logger too; PyTorch then formats megabytes of structured trace at each capture.
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    """A command that runs in this process shows what is logged, on a stream that is closed when its test has ended."""
    logger = logging.getLogger("hap")
    level, handlers = logger.level, [*logger.handlers]
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
