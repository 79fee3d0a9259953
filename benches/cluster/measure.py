"""What each rank of a measurement runs, under torchrun on the emulated cluster: a request's file, a result's file.

Making the systems takes processors as they are; what is measured takes the emulated ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benches.cluster.processors import full_speed


def main() -> None:
    """Arguments: the file of the request (:class:`benches.cluster.job.Request`), and that of the result."""
    request, result = map(Path, sys.argv[1:])
    with full_speed():
        # Importing torch takes seconds of a whole processor.
        from benches.cluster import job

        prepared = job.prepare(job.Request(**json.loads(request.read_text())))
    measured = job.measure(prepared)
    with full_speed():
        job.finish(prepared, measured, result)


if __name__ == "__main__":
    main()
