"""All cases: what every ``cases_*.py`` of this folder registers."""

from importlib import import_module
from pathlib import Path

from tests.rules.sketch import CASES

for _file in sorted(Path(__file__).parent.glob("cases_*.py")):
    import_module(f"{__package__}.{_file.stem}")

__all__ = ["CASES"]
