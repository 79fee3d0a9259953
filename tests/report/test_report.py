"""The report of a plan as a file; tests/browser looks at it in a browser."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

import hap
from hap import report
from hap.errors import PlanError
from hap.report.data import contents
from hap.report.page import _named as named
from tests.report.plans import HOSTILE, plan

VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Elements, attributes and texts; every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.fixture(scope="module")
def made():
    return plan()


@pytest.fixture(scope="module")
def page(made):
    return report.html(made)


def test_it_is_one_page_that_loads_nothing(page):
    parsed = Page(page)
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page
    assert not {"src", "srcset", "background"} & {name for _, attributes in parsed.elements for name in attributes}
    assert all(
        value.startswith(("#", "data:"))
        for _, each in parsed.elements
        for name, value in each.items()
        if name == "href"
    )
    policy = next(a["content"] for _, a in parsed.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_names_of_the_user_stay_text(made, page):
    assert any(HOSTILE in name for name in made.axes)
    parsed = Page(page)
    assert not any(tag == "img" for tag, _ in parsed.elements)
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    # It is told all the same.
    assert any(HOSTILE in text for _, text in parsed.texts)
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert HOSTILE in json.dumps(json.loads(data), ensure_ascii=False).replace('\\"', '"')


def test_it_says_what_the_plan_says(made, page):
    told = contents(made)
    assert len(told.program) == len(made.program.instructions)
    assert {rank for line in told.lines for rank in line.devices} == set(made.stage.devices)
    assert told.lines[0].usable == made.cluster.devices[0].usable_memory
    assert max(held for line in told.lines for _, held in line.memory) == pytest.approx(
        max(made.predicted_memory), abs=1
    )
    for split in told.splits:
        assert all(made.units(name) == list(split.units) for name in split.names)
    assert {each.name: each.seconds for each in told.strategies} == {"this plan": made.predicted_time} | {
        name: made.details.strategies[name].seconds if name in made.details.strategies else None
        for name in made.baselines
    }
    text = " ".join(text for _, text in Page(page).texts)
    for name in ("V100", HOSTILE, *made.baselines):
        assert name in text


def test_strategies_that_are_not_known_keep_their_names():
    assert named("ddp_even") == "DDP, even shares (ddp_even)"
    for unknown in ("pipeline", "pipeline_even", "ddp_odd"):
        assert named(unknown) == unknown


def test_equal_plans_give_equal_pages(made, page, tmp_path):
    made.save(tmp_path / "plan.json")
    loaded = hap.Plan.load(tmp_path / "plan.json")
    report.write(loaded, tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == page
    assert len(page) < 200_000


def test_a_plan_without_details_is_refused(made):
    with pytest.raises(PlanError, match="plan again with hap plan"):
        report.html(msgspec.structs.replace(made, details=None))
