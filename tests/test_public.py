"""The public names: what importing hap brings, that type checkers see all of it, that parts can be imported alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import hap

PACKAGE = Path(hap.__file__).parent

# Runs each of the statements in a fork of its own, and prints by statement the error, if any, and the new modules.
FORKS = """
import json, os, sys
sys.path.remove("") if "" in sys.path else None
statements, before = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for statement in before:
    exec(statement)
old, found = set(sys.modules), {}
for statement in statements:
    receive, send = os.pipe()
    if os.fork() == 0:
        error = None
        try:
            exec(statement)
        except BaseException as raised:
            error = repr(raised)
        os.write(send, json.dumps([error, sorted({name.split(".")[0] for name in set(sys.modules) - old})]).encode())
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as reader:
        found[statement] = json.loads(reader.read())
    os.wait()
print(json.dumps(found))
"""


def forks(statements, before=()):
    command = [sys.executable, "-c", FORKS, json.dumps(list(statements)), json.dumps(list(before))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_importing_hap_brings_nothing_large():
    (error, new), (wrong, _) = forks(["import hap", "import hap; hap.no_such_name"]).values()
    assert error is None
    # With the interpreter's own modules; benches/import_time.py says what it takes.
    assert "hap" in new
    assert {"torch", "numpy", "sympy", "rich", "msgspec", "highspy", "safetensors"}.isdisjoint(new)
    assert wrong == """AttributeError('module "hap" has no attribute "no_such_name"')"""


def test_parts_can_be_imported_first():
    parts = ("checkpoint.full", "operators", "rules", "runtime.passes", "trace.random")
    # What is large and none of hap's is imported once.
    large = ["import torch._dynamo, torch.distributed.checkpoint, torch.distributed.tensor, rich.progress, highspy"]
    wrong = {
        name: error for name, (error, _) in forks([f"import hap.{name}" for name in parts], large).items() if error
    }
    assert wrong == {}


def test_each_public_name_is_there_and_is_what_type_checkers_see():
    body = ast.parse((PACKAGE / "__init__.py").read_text()).body
    (block,) = [each for each in body if isinstance(each, ast.If) and isinstance(each.test, ast.Name)]
    seen = {alias.name: each.module for each in block.body for alias in each.names}
    assert seen == hap._ORIGINS
    assert set(hap.__all__) == {*seen, "errors", "trace"}
    assert sorted(hap.__all__) == hap.__all__
    for name in hap.__all__:
        assert getattr(hap, name) is not None
        assert name in dir(hap)
    for name in hap._PACKAGES:
        assert getattr(hap, name) is sys.modules[f"hap.{name}"]
