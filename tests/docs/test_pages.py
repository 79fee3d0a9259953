"""Every command and every block of code in the README and in docs/ is run, or marked with the reason why not."""

import ast
import re
import sys
import warnings
from pathlib import Path

import pytest
from docs.blocks import blocks, file_in

from tests.docs.run import ROOT, Page, commands, exists

DOCS = ROOT / "docs"
# Written by scripts, which other tests run: benches/ (tests/bench) and docs/coverage.py (make lint).
WRITTEN = {"benchmarks.md", "coverage.md"}
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.glob("*.md")) if page.name not in WRITTEN)]

NOT_RUN = {
    "README.md": ["make demo", "torchrun --nproc-per-node 2 examples/train.py"],
    "clusters.md": ["torchrun --nproc-per-node 2 -m hap.profiling"],
    "commands.md": ["torchrun --nproc-per-node 2 -m hap.cli profile"],
    "comparison.md": [],
    "concepts.md": ["python -m docs.pictures"],
    "index.md": ["make demo", "torchrun --nproc-per-node 2 examples/train.py"],
    "training.md": ["torchrun --nproc-per-node 2 examples/train.py"],
}
"""The blocks that are marked as not run, by how they begin: no more than these."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    # Measurements for a moment only, and none kept.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hap.profiling.run.OPERATORS", 0.02)
    monkeypatch.setattr("hap.profiling.run.QUICK_OPERATORS", 0.02)
    Path("model.py").write_text(file_in(DOCS / "index.md", "model.py"))
    yield
    sys.modules.pop("model", None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
@pytest.mark.xdist_group("docs")
def test_page(path, folder):
    page = Page(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks(path):
            if "not run" not in block.marks:
                page.run(block)


def test_blocks_that_are_not_run():
    for path in PAGES:
        found = [block for block in blocks(path) if "not run" in block.marks]
        begins = NOT_RUN.get(path.name, [])
        assert len(found) == len(begins), f"{path}: {[block.text for block in found]}"
        for block, begin in zip(found, begins, strict=True):
            assert block.text.startswith(begin)
            for words in commands(block):
                assert exists(words), f"{path}: what is {words}?"


def test_commands_elsewhere_are_there():
    for path in [*PAGES, *(DOCS / name for name in sorted(WRITTEN)), ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        indented = re.findall(r"^    ((?:make|python|torchrun|hap|git|pip) .*)$", text, re.MULTILINE)
        assert not indented or path not in PAGES, f"{path}: {indented} is no fenced block"
        inline = re.findall(r"`((?:make|python) [^`]*)`", text)
        for line in [*indented, *inline]:
            words = line.partition("#")[0].split()
            assert "/path" in line or exists(words), f"{path}: what is {line}?"


def test_messages_are_those_of_hap():
    said = " ".join(text for file in sorted((ROOT / "python").rglob("*.py")) for text in messages(file))
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 30
    unknown = [each for each in quoted if each.strip("… ") not in said]
    assert not unknown, f"no message of hap: {unknown}"


def messages(file):
    """The texts in a file, with an ellipsis for what is put in."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
