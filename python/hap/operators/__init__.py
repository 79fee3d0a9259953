"""``torch.ops.hap``: the operators that stand in a graph for attention, recurrent layers, dropout and random numbers.

Importing this package defines them.
"""

from hap.operators import attention, ctc, gru, lstm, random, rnn
from hap.operators.library import library

__all__ = ["attention", "ctc", "gru", "library", "lstm", "random", "rnn"]
