"""Files that are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in one step: whoever reads meanwhile, or after an interruption, finds it whole, old or new.

    Several processes may write it at once: one of their texts is there in the end. What is no file but, say, a pipe is
    written as it is. A file that is replaced keeps its permissions, and one that may not be written is not replaced.

    Raises:
        OSError: the file cannot be written; names it.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    # A link stays one: what it names is replaced.
    target = Path(os.path.realpath(target))
    replaced = target.exists()
    if replaced and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            part.write_text(text, encoding="utf-8")
            if replaced:
                shutil.copymode(target, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
