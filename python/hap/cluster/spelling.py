"""Known names that look like what somebody wrote."""

from __future__ import annotations

import difflib
from collections.abc import Mapping


def nearest(wanted: str, spellings: Mapping[str, str], *, cutoff: float) -> list[str]:
    """Up to three names that look most like ``wanted``, best first: those that it begins, then those that are alike.

    Args:
        wanted: squeezed as the keys of ``spellings`` are.
        spellings: names in their usual spelling, by the squeezed one.
        cutoff: likeness from 0 to 1 that a name must have, as for :func:`difflib.get_close_matches`.
    """
    starting = [spelling for squeezed, spelling in spellings.items() if wanted and squeezed.startswith(wanted)]
    alike = [spellings[match] for match in difflib.get_close_matches(wanted, spellings, n=3, cutoff=cutoff)]
    return list(dict.fromkeys(starting + alike))[:3]
