"""What torchrun starts on each rank: takes its place on the emulated cluster, then becomes the command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benches.cluster import processors

PLACES = "HAP_EMULATED_PLACES"
"""Environment variable: JSON, by rank the processor, the file of the limit and what to write there."""


def main() -> None:
    """Arguments: the command."""
    processor, file, limit = json.loads(os.environ.pop(PLACES))[int(os.environ["RANK"])]
    os.sched_setaffinity(0, {processor})
    if limit is not None:
        processors.join(Path(file))
        lifted = "-1"
    else:
        limit, lifted = str(os.getpid()), "0"
        Path(file).write_text(limit)
    os.environ[processors.ENTERED] = f"{file}={lifted}={limit}"
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
