"""Commands run in the process of the tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command shows what is logged, on a stream that is closed when its test has ended."""
    logger = logging.getLogger("hap")
    level, handlers = logger.level, [*logger.handlers]
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
