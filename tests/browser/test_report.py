"""The report of a plan in headless Chromium: ``make test-browser`` installs what it needs."""

import shutil
from itertools import pairwise

import pytest

from hap import report
from tests.report.plans import HOSTILE, plan

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not there: make test-browser installs it")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("Chromium is not there: make test-browser installs it", allow_module_level=True)

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

PAINT = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# What is behind a text counts, up to the first that is painted.
CONTRAST = """
const channel = (value) => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = numbers(getComputedStyle(one).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || ["SCRIPT", "STYLE", "NOSCRIPT", "CANVAS"].includes(element.tagName)) continue;
  const [one, other] = [light(numbers(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < 4.5) found.push(`${element.tagName} ${element.textContent.slice(0, 40)} ${ratio.toFixed(2)}`);
}
return found;
"""


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "plan.html"
    report.write(plan(), path)
    return path.as_uri()


@pytest.fixture
def page(browser, file):
    browser.set_window_size(1200, 900)
    browser.get(file)
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


def by_id(page, name):
    return page.find_element(By.ID, name)


def press(page, name):
    element = by_id(page, name)
    page.execute_script('arguments[0].scrollIntoView({block: "center", behavior: "instant"})', element)
    element.click()


def rows(page):
    """The rows of the program that are there, once scrolling is done: identifier, text, top in pixels, selected or not.

    All at once, by a script: the page makes its rows anew whenever the list scrolls, so an element that the driver
    holds may be gone when it is asked.
    """
    page.execute_script(PAINT)
    return page.execute_script(
        "return [...document.querySelectorAll('#rows .row')].map((row) => ({id: row.id, text: row.textContent,"
        " top: row.getBoundingClientRect().top, selected: row.ariaSelected === 'true'}))"
    )


def picture(page):
    page.execute_script(PAINT)
    return page.execute_script('return document.getElementById("clock").toDataURL()')


def test_nothing_of_the_plan_becomes_part_of_the_page(page):
    assert page.title.startswith("hap plan for 2 x V100")
    assert HOSTILE in page.title
    assert page.find_elements(By.TAG_NAME, "img") == []


def test_zoom_moves_and_comes_back(page):
    whole = picture(page)
    press(page, "closer")
    closer = picture(page)
    assert closer != whole
    press(page, "later")
    assert picture(page) != closer
    press(page, "whole")
    assert picture(page) == whole
    clock = by_id(page, "clock")
    for keys in ("+", Keys.ARROW_RIGHT, "-"):
        clock.send_keys(keys)
    assert picture(page) != whole
    clock.send_keys(Keys.HOME)
    assert picture(page) == whole
    ActionChains(page).key_down(Keys.CONTROL).scroll_from_origin(
        webdriver.common.actions.wheel_input.ScrollOrigin.from_element(clock), 0, -100
    ).key_up(Keys.CONTROL).perform()
    WebDriverWait(page, 10).until(lambda page: picture(page) != whole)


def test_search_lists_what_fits(page):
    search = by_id(page, "find")
    total = int(by_id(page, "found").text.split()[0])
    search.send_keys("addmm")
    count = int(by_id(page, "found").text.split()[0])
    assert 0 < count < total
    found = rows(page)
    assert found
    assert all("addmm" in row["text"] for row in found)
    search.clear()
    search.send_keys("no such thing")
    assert by_id(page, "found").text.startswith("0 of ")
    assert rows(page) == []


def test_what_is_chosen_is_shown_in_the_timeline_and_in_the_program(page):
    before = picture(page)
    by_id(page, "list").send_keys(Keys.END, Keys.ARROW_UP, Keys.HOME)
    assert [row["id"] for row in rows(page) if row["selected"]] == ["row-0"]
    assert by_id(page, "list").get_attribute("aria-activedescendant") == "row-0"
    assert by_id(page, "chosen").text.endswith("takes no time of its own")
    by_id(page, "clock").send_keys(".")
    assert "computation on device" in by_id(page, "chosen").text
    assert "plans.py" in by_id(page, "chosen").text or "collective" in by_id(page, "chosen").text
    assert picture(page) != before
    (selected,) = (row["id"] for row in rows(page) if row["selected"])
    assert selected != "row-0"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read(page, theme):
    if page.execute_script('return document.getElementById("theme").textContent').lower() == theme:
        press(page, "theme")
    assert page.execute_script("return document.documentElement.dataset.theme || 'light'") == theme
    assert page.execute_script(CONTRAST) == []


def test_a_phone_needs_no_scrolling_to_the_side(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    page.execute_script(PAINT)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 360
    # Nor do tables: each cell has its heading beside it.
    wide = "return [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    assert page.execute_script(wide) == 0
    assert "Waits" in page.execute_script(
        "return [...document.querySelectorAll('#devices td')]"
        ".map((cell) => getComputedStyle(cell, '::before').content).join()"
    )
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_is_white_and_has_the_whole_program_without_tools(page):
    if page.execute_script('return document.getElementById("theme").textContent') == "Dark":
        press(page, "theme")
    ink = "return getComputedStyle(document.body).color"
    dark = page.execute_script(ink)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.execute_script('window.dispatchEvent(new Event("beforeprint"))')
    assert page.execute_script(ink) != dark
    assert not by_id(page, "closer").is_displayed()
    assert by_id(page, "clock").is_displayed()
    printed = rows(page)
    assert len(printed) == int(by_id(page, "found").get_attribute("textContent").split()[0])
    assert all(one["top"] < other["top"] for one, other in pairwise(printed))
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.execute_script('window.dispatchEvent(new Event("afterprint"))')
    assert page.execute_script(ink) == dark


def test_everything_has_a_name_and_a_place(page):
    unnamed = page.execute_script(
        """
        const named = (it) => it.getAttribute("aria-label") || it.textContent.trim() || (it.labels && it.labels.length);
        return [...document.querySelectorAll("button, input, canvas, a, [role], svg:not([aria-hidden])")]
          .filter((it) => !named(it)).map((it) => it.outerHTML.slice(0, 80));
        """
    )
    assert unnamed == []
    for selector in ("html[lang]", "main", "nav[aria-label]", "header h1", "table caption", "th[scope]"):
        assert page.find_elements(By.CSS_SELECTOR, selector)
    # All that can be used can be reached by the keyboard, in the order of the page.
    reached = []
    for _ in range(40):
        ActionChains(page).send_keys(Keys.TAB).perform()
        reached.append(page.execute_script("return document.activeElement.id"))
    assert [name for name in reached if name in ("theme", "closer", "clock", "find", "list")][:5] == [
        "theme", "closer", "clock", "find", "list",
    ]  # fmt: skip
