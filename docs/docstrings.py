"""Makes Markdown of what docstrings say in Sphinx's words, for the page of the Python interface (``mkdocs.yml``)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?\w+:`~?([^`]+)`")
_CODE_FOLLOWS = re.compile(r"::$", re.MULTILINE)


class Markdown(griffe.Extension):
    """Takes roles such as ``:func:`` from names, and a colon from what stands before code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _CODE_FOLLOWS.sub(":", _ROLE.sub(r"`\1`", obj.docstring.value))
