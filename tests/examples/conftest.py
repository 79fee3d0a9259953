"""Makes the examples importable, here and in the processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
