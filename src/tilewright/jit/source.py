"""What goes into the compiler and what comes out of it, as plain values.

A Source holds the whole text of a unit: nothing outside it can change the machine code but the compiler's own
version, so the digest of both names the result. Knows nothing of NVRTC or of the disk.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from tilewright.errors import UnsupportedError

# Raised when the layout of a cache entry changes, so that old entries are misses.
SCHEMA = 1

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def included(text: str) -> tuple[str, ...]:
    """The paths that a text includes, as spelled there."""
    return tuple(_INCLUDE.findall(text))


@dataclass(frozen=True)
class Source:
    """One unit with everything that it includes.

    `headers` maps each include path, spelled as in the text, to the header's text. `arch` is the target, such as
    "sm_90a". `entry` is the one extern "C" function.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    entry: str
    arch: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises: UnsupportedError: a header path that would leave the folder of a cache entry, or is there twice."""
        paths = [path for path, _ in self.headers]
        for path in paths:
            parts = PurePosixPath(path).parts
            if not parts or parts[0] == "/" or ".." in parts or paths.count(path) > 1:
                raise UnsupportedError(
                    asked=f"header path {path!r} of {self.name}",
                    rule="a header path is relative, has no .. in it, and is there once",
                    works="spell it as the #include does, such as 'ptx/barrier.cuh'",
                )

    def missing_includes(self) -> tuple[str, ...]:
        """Include paths that the text or a header names and `headers` lacks: a digest must see every input."""
        known = dict(self.headers)
        named = {path for text in (self.text, *known.values()) for path in included(text)}
        return tuple(sorted(named - known.keys()))

    def digest(self, compiler: str) -> str:
        """The content address of the Binary: 32 hex digits over every input and the compiler's version."""
        sha = hashlib.sha256()
        # The count of options keeps them apart from the text and the headers that follow.
        count = str(len(self.options))
        parts = [str(SCHEMA), compiler, self.name, self.entry, self.arch, count, *self.options, self.text]
        for path, text in sorted(self.headers):
            parts += [path, text]
        for part in parts:
            raw = part.encode()
            sha.update(len(raw).to_bytes(8, "little"))  # lengths keep ("ab", "c") and ("a", "bc") apart
            sha.update(raw)
        return sha.hexdigest()[:32]


@dataclass(frozen=True)
class Resources:
    """What one thread and one CTA of the entry take, as ptxas reported it.

    Units: bytes; registers a thread. `smem_bytes` is static shared memory only.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    smem_bytes: int
    barriers: int


@dataclass(frozen=True)
class Binary:
    """One compiled unit.

    `cubin` is what a device loads; `ptx` is what ptxas made it from in the same run, and what people and the emulator
    read. `warnings` holds ptxas's C75xx lines (serialised wgmma and the like), which no production kernel may have.
    `digest` and `compiler` tell of the build itself; one from a prebuilt folder may be of another NVRTC than is here.
    """

    digest: str
    name: str
    entry: str
    arch: str
    compiler: str
    cubin: bytes
    ptx: str
    log: str
    resources: Resources
    warnings: tuple[str, ...]
    compile_seconds: float
    from_cache: bool
