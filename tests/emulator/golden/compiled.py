"""Golden vectors through the project's own compiler: one Binary each, PTX and cubin of one run of NVRTC."""

from __future__ import annotations

from golden.vector import ARCH, ENTRY, PRELUDE, Vector
from tilewright.jit import build
from tilewright.jit.source import Binary, Source


def compiled(vector: Vector) -> Binary:
    """The vector's kernel. Cost: about 0.1 s of the compiler, once."""
    headers = (("prelude.cuh", PRELUDE.read_text()),)
    source = Source(name=f"golden_{vector.name}", text=vector.source, headers=headers, entry=ENTRY, arch=ARCH)
    return build.build(source)
