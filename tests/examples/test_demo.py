import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--steps", "2", "--turn", "2", "--batch", "8", "--width", "32", "--layers", "1"]


@pytest.mark.timeout(300)
def test_demo_shows_what_it_promises():
    run = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", *SMALL],
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert run.returncode == 0, run.stderr
    for expected in ("80%", "20%", "Collectives", "DDP, even batches", "DDP, proportional batches"):
        assert expected in run.stdout
    # Small as the model is, one device may do better alone.
    assert any(text in run.stdout for text in ("hap: ", "hap leaves out ranks", "hap splits nothing")), run.stdout
    difference = re.search(r"Largest difference of hap's loss from it in 2 steps: (\S+)\.", run.stdout)
    assert difference is not None, run.stdout
    assert float(difference[1]) < 1e-4
    assert re.search(r"hap was (not )?the fastest", run.stdout)


def test_demo_reports_a_failure_and_ends():
    run = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", *SMALL, "--timeout", "1"], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 1
    assert run.stderr == "demo: the job took too long and was stopped\n"
