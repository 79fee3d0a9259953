import pytest
from docs.pictures import HERE, draw


@pytest.mark.xdist_group("docs")
def test_pictures_are_those_of_the_plan():
    for name, text in draw().items():
        assert (HERE / "images" / name).read_text() == text, "the plan is another one: python -m docs.pictures"
