"""Runs the blocks of a page in order: Python in one namespace, commands of hap in this process, outputs compared."""

import contextlib
import importlib.util
import io
import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from docs.blocks import Block
from typer.testing import CliRunner

import hap
from hap.cli import app
from tests.docs.given import GIVEN

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Page:
    """What has been run of a page: its names, and what its latest block wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = {"hap": hap, "torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        self.output = ""

    def run(self, block: Block) -> None:
        for given in filter(None, block.marks.get("given", "").split(", ")):
            self.names |= GIVEN[given](self.names)
        if block.language == "python":
            if "file" in block.marks:
                Path(block.marks["file"]).write_text(block.text)
            self.python(block)
        elif block.language == "bash":
            self.output = "".join(command(arguments) for arguments in commands(block))
        elif block.language == "json":
            Path(block.marks["file"]).write_text(block.text)
        elif block.language == "text":
            self.text(block)
        else:
            assert block.language == "", f"{self.path}:{block.line}: what is {block.language}?"

    def text(self, block: Block) -> None:
        """What the block before it wrote; with ``HAP_WRITE_DOCS=1`` it is put there."""
        if "HAP_WRITE_DOCS" in os.environ and "..." not in block.text:
            there, now = (f"```text\n{text}```" for text in (block.text, self.output))
            self.path.write_text(self.path.read_text().replace(there, now, 1))
        else:
            compare(block, self.output, self.path)

    def python(self, block: Block) -> None:
        # Tracebacks tell the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(self.path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as written:
            if "raises" in block.marks:
                with pytest.raises(getattr(hap.errors, block.marks["raises"])) as caught:
                    exec(code, self.names)
                written.write(str(caught.value))
            else:
                exec(code, self.names)
        self.output = written.getvalue()


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a block."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def command(words: list[str]) -> str:
    """What a command of hap writes."""
    assert words[0] == "hap", f"{words}: only commands of hap are run; mark others as not run, and say why"
    found = CliRunner().invoke(app, words[1:])
    assert found.exit_code == 0, (words, found.output)
    return found.stdout


def compare(block: Block, output: str, page: Path) -> None:
    """Each line of the block is one of the output, in order; ``...`` stands for any text, spaces for any number."""
    rest = iter(" ".join(line.split()) for line in output.splitlines())
    for line in block.text.splitlines():
        pattern = ".*".join(map(re.escape, " ".join(line.split()).split("...")))
        assert any(re.fullmatch(pattern, found) for found in rest), (
            f"{page}: no line is\n{line}\nin\n{output}\nHAP_WRITE_DOCS=1 pytest tests/docs writes what is now"
        )


def exists(words: list[str]) -> bool:
    """Whether the target, script or module of a command that is not run is there."""
    if words[0] == "make":
        return words[1] in TARGETS
    if "-m" in words:
        return importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    scripts = [word for word in words if word.endswith((".py", ".ci/run"))]
    return bool(scripts) and (ROOT / scripts[0]).exists()
