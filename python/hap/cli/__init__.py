"""The command ``hap``: ``hap --help`` lists what it does.

Exit codes: 0 done; 1 it cannot be done, and the message says why; 2 the command line is wrong; 3 ``hap check`` found a
difference; 70 an error inside of hap; 130 interrupted.
"""

from hap.cli.app import app

__all__ = ["app"]
