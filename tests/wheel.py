"""Is the wheel whole? Installs it where nothing else of hap is, and plans with it: ``python tests/wheel.py dist``.

torch and the other dependencies are those of the environment that runs this: installing them again would take minutes.
Only what lies in their folder is seen, not what is linked there for development.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

LARGEST = 5e6
MODEL = """
import torch
from torch import nn

class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 1))

    def forward(self, x, y):
        return (self.layers(x).squeeze(1) - y).square().mean()

def build():
    return Regression(), (torch.randn(2048, 256), torch.randn(2048))
"""


def main() -> None:
    folder = Path(sys.argv[1])
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    for path in (wheel, source):
        assert path.stat().st_size < LARGEST, f"{path} has {path.stat().st_size} bytes, more than {LARGEST:g}"
    assert "-cp310-abi3-" in wheel.name, f"expected one wheel for all versions of Python from 3.10, got {wheel.name}"
    check_contents(wheel, source)
    with tempfile.TemporaryDirectory() as place:
        check_use(wheel, Path(place))
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in (wheel, source))
    print(f"the wheel plans, explains and checks; {sizes}")


def check_contents(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    for expected in ("hap/py.typed", "hap/_core.pyi", "hap/_core.abi3.so"):
        assert expected in names, f"{wheel.name} lacks {expected}"
    assert any(name.endswith("/LICENSE") for name in names), f"{wheel.name} lacks LICENSE"
    assert not any(name.startswith("tests/") for name in names), f"{wheel.name} holds tests"
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.10", "Classifier: Typing :: Typed"):
        assert line in metadata, f"{wheel.name}: METADATA lacks {line}"
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for expected in ("Cargo.toml", "Cargo.lock", "pyproject.toml", "rust/lib.rs", "python/hap/__init__.py", "LICENSE"):
        assert expected in inside, f"{source.name} lacks {expected}"


def check_use(wheel: Path, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    python = place / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel.resolve())], check=True)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    # A folder that a .pth file names is searched last, and the .pth files in it are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (place / "model.py").write_text(MODEL)

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    origin = run(str(python), "-c", "import hap; print(hap.__file__)").strip()
    assert Path(origin).is_relative_to(site.resolve()), f"imported hap from {origin}"
    hap = str(place / "venv" / "bin" / "hap")
    assert run(hap, "--version").strip() == f"hap {wheel.name.split('-')[1]}"
    devices = ("--devices", "V100:2,P100", "--link", "100GbE")
    plan = json.loads(run(hap, "plan", "model.py:build", *devices, "--output", "plan.json", "--json"))
    assert plan["predicted_time"] > 0.0, plan
    assert json.loads(run(hap, "explain", "plan.json", "--json"))["step"] == plan["predicted_time"]
    assert json.loads(run(hap, "check", "model.py:build", *devices, "--json"))["equal"]


if __name__ == "__main__":
    main()
