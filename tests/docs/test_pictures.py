import os

import pytest
from docs.pictures import HERE, draw


@pytest.mark.xdist_group("docs")
def test_pictures_are_those_of_the_plan():
    for name, text in draw().items():
        if "HAP_WRITE_DOCS" in os.environ:
            (HERE / "images" / name).write_text(text)
        assert (HERE / "images" / name).read_text() == text, "the plan is another one: python -m docs.pictures"
