"""What importing hap takes beyond torch, and what its first use takes: medians over new interpreters.

python benches/import_time.py             # five of each
python benches/import_time.py --quick     # one of each: proves that it runs
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CASES = {
    "import hap": ("", "import hap"),
    "import hap, after torch": ("import torch", "import hap"),
    "hap.Cluster, after torch": ("import torch", "import hap; hap.Cluster"),
    "hap.plan, after torch": ("import torch", "import hap; hap.plan"),
    "hap --version": ("", "from hap.cli import app; app(['--version'], standalone_mode=False)"),
}
TIMED = "import sys, time\n{before}\nbegin = time.perf_counter()\n{timed}\nprint(time.perf_counter() - begin)"


def seconds(before: str, timed: str) -> float:
    """Of the second statement, in a new interpreter that has run the first one."""
    code = TIMED.format(before=before, timed=timed)
    return float(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    repeats = 1 if parser.parse_args().quick else 5
    for name, (before, timed) in CASES.items():
        times = [seconds(before, timed) for _ in range(repeats)]
        print(f"{name:28} {statistics.median(times):.3f} s (least {min(times):.3f} s)")


if __name__ == "__main__":
    main()
