import json

import pytest
from benches.cluster import report
from benches.cluster.pairs import PAIRS
from benches.document import END, write_part


def one(seconds, predicted, loss=(2.0, 1.0)):
    return {"seconds": [seconds, seconds, 9.0 * seconds], "predicted": predicted, "loss": list(loss)}


RESULTS = {
    "60:20, little memory; gpt2": {
        "systems": {"hap": one(1.0, 1.0), "ddp_proportional": one(2.0, None), "fsdp2": one(4.0, 3.0)},
        "plan": "batch 3:1; 2 all_reduce",
        "reference": [2.0, 1.001],
    },
    "equal; vit": {
        "systems": {"hap": one(1.0, 1.2), "ddp_even": one(0.99, 1.0), "fsdp2": one(2.0, 0.5)},
        "plan": "batch 2:2",
        "reference": [2.0, 1.0],
    },
}


def test_records_say_all_of_every_system():
    found = report.records(RESULTS)
    assert [(entry["workload"], entry["system"]) for entry in found] == [
        (PAIRS[name].kind, system) for name in RESULTS for system in PAIRS[name].systems
    ]
    assert found[0] == {
        "cluster": "60:20, little memory",
        "unequal": True,
        "workload": "gpt2",
        "system": "hap",
        "seconds": [1.0, 1.0, 9.0],
        "predicted": 1.0,
        "loss": [2.0, 1.0],
    }
    # What did not fit has no steps.
    assert found[1]["system"] == "ddp_even"
    assert found[1]["seconds"] == []
    assert not found[-1]["unequal"]


def test_text_compares_medians():
    text = report.text(RESULTS)
    assert "0.99 x (equal; vit) at least" in text
    assert "On unequal devices: 2.00 x as a geometric mean, 2.00 x (60:20, little memory; gpt2) at most" in text
    assert "| gpt2 | DDP, even | does not fit |" in text
    assert "| gpt2 | FSDP2 | 4,000 | 4,000 to 20,000 | 4.00 x | 3,000 | -25% |" in text
    # Off by 0%, 25%, 20%, 1% and 75%. Three pairs of systems differ, two of them otherwise than predicted.
    assert "off by 20% in the median and by 75% at most; they name the faster one in 1 of 3" in text
    assert "by 1.0e-03 of them at most" in text
    assert "* gpt2: batch 3:1; 2 all_reduce" in text


def test_a_part_of_a_document_is_written_and_no_more(tmp_path):
    document = tmp_path / "document.md"
    document.write_text(f"a\n<!-- one -->\nold\n{END}\nb\n<!-- two -->\nkept\n{END}\nc\n")
    write_part(document, "<!-- one -->", "new\n")
    write_part(document, "<!-- two -->", "newer\n")
    assert document.read_text() == f"a\n<!-- one -->\nnew\n{END}\nb\n<!-- two -->\nnewer\n{END}\nc\n"
    with pytest.raises(ValueError, match="expected <!-- three -->"):
        write_part(document, "<!-- three -->", "")


def test_documents_say_what_has_not_been_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "DOCS", tmp_path)
    (tmp_path / "benchmarks.md").write_text(f"{report.BEGIN}\n{END}\n")
    report.write(RESULTS)
    text = (tmp_path / "benchmarks.md").read_text()
    assert report.text(RESULTS) in text
    assert [name for name in PAIRS if f"* Not measured yet: {name}." in text] == [
        name for name in PAIRS if name not in RESULTS
    ]
    assert json.loads((tmp_path / "benchmarks.json").read_text()) == report.records(RESULTS)
