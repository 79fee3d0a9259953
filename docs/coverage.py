"""Writes ``docs/coverage.md``: every operator that hap can split, its rule, its proof, and the models that use it.

    python -m docs.coverage            writes the page (`make coverage`)
    python -m docs.coverage --models   first traces the models of tests/zoo anew, into docs/coverage.json
    python -m docs.coverage --check    fails where the page is not what would be written (`make lint`)

The zoo's own test compares ``coverage.json`` with the models (tests/zoo/test_zoo.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from pathlib import Path

from tests.rules.cases import CASES
from tests.rules.sketch import Sketch

from hap.rules import annotate
from hap.rules.families import FAMILIES, every_rule

HERE = Path(__file__).parent
PAGE, MODELS = HERE / "coverage.md", HERE / "coverage.json"
LINES = 3
"""Most lines that are shown of a rule that writes them for each call."""

HEAD = """\
# Operators that can be split over devices

Written by `make coverage`; do not edit. {operators} operators have a rule, and each rule has cases: its exact choices
are asserted, and each choice is run on random uneven shares and compared with one device
(`pytest "tests/rules/test_proof.py" -k CASE`). The notation is that of `hap.rules.notation`; where a rule writes its
line for each call, those of its cases stand here, `...` for more. "Models" are those of `tests/zoo`, forward and
backward.

Operators that are not listed follow PyTorch's own sharding strategies where `hap.rules.adapter` can use them, else
every device computes them whole, with a warning. What tracing takes apart (means, batch norm, losses, ...) needs no
rule and is not listed either.
"""


def lines_and_cases() -> dict[str, tuple[list[str], list[str]]]:
    """By operator: the lines that its cases bind to, and the labels of the cases."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for case in CASES:
        sketch = Sketch(random.Random(0))
        case.build(sketch)
        bound = annotate(sketch.graph).bound[case.operator(sketch.graph)]
        assert bound is not None, f"the rule of {case.rule} does not hold for its case {case.label}"
        lines, labels = found.setdefault(case.rule, ([], []))
        if bound.line.text not in lines:
            lines.append(bound.line.text)
        labels.append(case.label)
    return found


def operators_of_models() -> dict[str, list[str]]:
    """The operators of each model of the zoo, by tracing."""
    from tests.zoo.models import ZOO

    import hap

    found = {}
    for name in sorted(ZOO):
        module, args, kwargs = ZOO[name].build()
        found[name] = sorted({str(operator.target) for operator in hap.trace(module, args, kwargs).operators})
    return found


def page(models: dict[str, list[str]]) -> str:
    """The whole page."""
    rules = every_rule()
    shown = lines_and_cases()
    users = {operator: [name for name in sorted(models) if operator in models[name]] for operator in rules}
    families = [(f.__name__.rpartition(".")[2], (f.__doc__ or "").partition("\n")[0], f.RULES.keys()) for f in FAMILIES]
    listed = {operator for _, _, operators in families for operator in operators}
    families.append(("tagged", "Pointwise operators by PyTorch's tags.", rules.keys() - listed))
    parts = [HEAD.format(operators=len(rules))]
    for name, summary, operators in families:
        parts.append(f"## {name}\n\n{summary}\n")
        parts.append("| operator | rule | case | models |\n|---|---|---|---|")
        for operator in sorted(operators):
            lines, labels = shown[operator]
            text = "<br>".join(
                [f"`{line}`".replace("|", "\\|") for line in lines[:LINES]] + ["`...`"] * (len(lines) > LINES)
            )
            more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
            parts.append(f"| `{operator}` | {text} | `{labels[0]}`{more} | {', '.join(users[operator])} |")
        parts[-1] += "\n"
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Runs the script; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", action="store_true", help="trace the models anew")
    parser.add_argument("--check", action="store_true", help="fail where the page is out of date")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if options.models:
        MODELS.write_text(json.dumps(operators_of_models(), indent=0) + "\n")
    text = page(json.loads(MODELS.read_text()))
    if options.check:
        if PAGE.read_text() == text:
            return 0
        sys.stderr.write(f"{PAGE} is not up to date: run `make coverage`\n")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
