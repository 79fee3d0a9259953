"""``torch.ops.hap``: the operators that stand in a graph for attention, dropout and random numbers.

Importing this package defines them.
"""

from hap.operators import attention, random
from hap.operators.library import library

__all__ = ["attention", "library", "random"]
