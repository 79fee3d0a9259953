"""All models of the zoo. Importing them fills ``ZOO``."""

from tests.zoo import language, moe, vision, written
from tests.zoo.entry import ZOO, Entry

__all__ = ["ZOO", "Entry", "language", "moe", "vision", "written"]
