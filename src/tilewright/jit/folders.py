"""Folders that processes share: who may change them, what they hold, and a rename that publishes one at once.

Knows nothing of kernels or of entries.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path


def distrust(status: os.stat_result) -> str:
    """Why others could change a file or folder of this status; empty when only this user and root can.

    The sticky bit is no help: it keeps others from removing entries, not from adding them.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, who is neither you ({os.geteuid()}) nor root"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def children(folder: Path | None, name: re.Pattern[str]) -> list[Path]:
    """The folders in a folder whose whole name matches; none of one that cannot be read."""
    if folder is None:
        return []
    try:
        named = [path for path in folder.iterdir() if name.fullmatch(path.name)]
        return [path for path in named if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed by another process meanwhile
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def publish(aside: Path, folder: Path) -> bool:
    """True when `aside` became `folder`; False when another process was first, seen by us (NFS) or not."""
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    flush(folder.parent)
    return True


def flush(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
