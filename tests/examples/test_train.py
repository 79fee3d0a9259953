import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hap

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"


def losses(processes, *arguments):
    """What train.py prints under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", TRAIN]
    run = subprocess.run(
        [*command, "--steps=3", "--batch=6", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return [float(loss) for loss in re.findall(r"^step +\d+  loss (\S+)$", run.stdout, re.MULTILINE)]


@pytest.mark.timeout(300)
def test_training_on_unequal_devices_equals_training_on_one(tmp_path):
    hap.Cluster(["V100", "P100"], link=hap.Link(bandwidth=1.25e9, latency=5e-5)).save(tmp_path / "cluster.json")
    alone = losses(1, "--devices", "V100")
    assert len(alone) == 3
    assert alone[0] == pytest.approx(5.5, abs=0.5)
    assert losses(2, "--cluster", tmp_path / "cluster.json") == pytest.approx(alone, abs=2e-4)
