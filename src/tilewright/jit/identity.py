"""Which NVRTC this process compiles with, told without loading it where a past process has written it down.

Loading NVRTC and asking it for its build takes 0.1 s, and a kernel from the cache 1 ms: so the cache folder keeps a
note of which library file was which build. Knows where a library lies and what a note says; knows nothing of keys.

A file is told by its path, size and time of change. A note that is missing, damaged or wrong costs time and nothing
else: before anything is compiled the library itself is asked, and the note put right. State: the version in use.
"""

from __future__ import annotations

import json
import site
import sys
from pathlib import Path

from tilewright.jit import nvrtc
from tilewright.jit.cache import Cache

MAX_NOTED = 32  # libraries in one note: a home folder shared by many environments

# Where wheels put the library, in the order in which cuda.pathfinder looks. It looks into conda environments and the
# system's folders after that; those are found by loading only, as are libraries of other releases.
WHEEL_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
SONAME = "libnvrtc.so.13"

_MAPS = Path("/proc/self/maps")  # what is loaded into this process

Stamp = tuple[str, int, int]  # path, bytes, nanoseconds since 1970

_recalled: str | None = None


def compiler_version(cache: Cache) -> str:
    """The build of NVRTC that this process has asked, or else the one that the cache's note says it would load.

    Raises: UnsupportedError: there is no note of it, and NVRTC is missing or too old.
    Cost: under 1 ms the first time where a note tells; 0.1 s where NVRTC must be asked; then nothing.
    """
    global _recalled
    if (known := nvrtc.known_version()) is not None:
        return known
    if _recalled is None:
        stamp = stamp_of(library_file())
        _recalled = None if stamp is None else _noted(cache).get(stamp)
    return _recalled or asked_version(cache)


def asked_version(cache: Cache) -> str:
    """The build of NVRTC, asked of the library itself; the cache's note of it is put right.

    Raises: UnsupportedError: NVRTC is missing or too old.
    """
    version = nvrtc.compiler_version()
    _note(cache, version)
    return version


def forget() -> None:
    """After this, the note is read again."""
    global _recalled
    _recalled = None


def library_file() -> Path | None:
    """The file of the NVRTC that is loaded, else of the wheel that would be; None where only loading it tells."""
    loaded = _loaded_file()
    if loaded is not None:
        return loaded
    for folder in WHEEL_FOLDERS:
        for packages in _package_folders():
            file = packages / folder / SONAME
            if file.is_file():
                return file
    return None


def stamp_of(file: Path | None) -> Stamp | None:
    """What tells one build's file from another's; None for a file that is not there."""
    if file is None:
        return None
    try:
        real = file.resolve(strict=True)
        status = real.stat()
    except OSError:
        return None
    return str(real), status.st_size, status.st_mtime_ns


def _loaded_file() -> Path | None:
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:  # address, rights, offset, device, inode, path
        if f"/{SONAME}" in line:
            return Path(line.split(maxsplit=5)[5])
    return None


def _package_folders() -> list[Path]:
    """The site-packages folders in cuda.pathfinder's order: the user's own after a virtual environment's."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.insert(1 if sys.prefix != sys.base_prefix else 0, site.getusersitepackages())
    return [Path(folder) for folder in folders]


def _noted(cache: Cache) -> dict[Stamp, str]:
    """What the note says; empty where there is none, or it is not one."""
    try:
        lines = json.loads(cache.read_note() or b"[]")
        return {(str(path), int(size), int(changed)): str(version) for path, size, changed, version in lines}
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):  # whatever else a text can hold
        return {}


def _note(cache: Cache, version: str) -> None:
    """Write the loaded library's version down, unless it is there. The newest come last."""
    stamp = stamp_of(_loaded_file())
    noted = _noted(cache)
    if stamp is None or noted.get(stamp) == version:
        return
    kept = {old: text for old, text in noted.items() if old[0] != stamp[0]}
    lines = [[*old, text] for old, text in (kept | {stamp: version}).items()]
    cache.write_note(json.dumps(lines[-MAX_NOTED:], indent=1).encode())
