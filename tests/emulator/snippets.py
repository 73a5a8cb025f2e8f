"""Small kernels written in PTX: a frame round a body, run on given bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, Report, run

FRAME = """\
.version 8.7
.target sm_90a
.address_size 64
{module}
.visible .entry k(.param .u64 k_in, .param .u64 k_out)
{{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %rd<32>;
.reg .f64 %d<8>;
ld.param.u64 %rd0, [k_in];
ld.param.u64 %rd1, [k_out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd2, %r0, 4;
add.s64 %rd3, %rd0, %rd2; // this thread's word of in
add.s64 %rd4, %rd1, %rd2; // this thread's word of out
{body}
ret;
}}
"""

UNTOUCHED = 0xEE


def kernel(body: str, module: str = "") -> str:
    """The PTX of a kernel k(in, out). %r0 is tid.x, %rd3 and %rd4 the thread's words of in and out."""
    return FRAME.format(body=body, module=module)


def line_of(text: str, fragment: str) -> int:
    """The number of the first line that contains the fragment."""
    return next(number for number, line in enumerate(text.split("\n"), start=1) if fragment in line)


def execute(
    text: str,
    given: NDArray[Any] | None = None,
    *,
    out_bytes: int = 128,
    grid: int = 1,
    block: int = 32,
    cluster: int = 1,
    smem_bytes: int = 0,
    registers: int = 0,
    more: tuple[bytes, ...] = (),
    **choices: Any,
) -> tuple[NDArray[np.uint8], Report]:
    """(bytes of out, report) of one launch."""
    memory = GlobalMemory()
    source = np.zeros(4, np.uint8) if given is None else np.ascontiguousarray(given).reshape(-1).view(np.uint8).copy()
    out = np.full(out_bytes, UNTOUCHED, np.uint8)
    addresses = [memory.add("in", source), memory.add("out", out)]
    launch = Grid(grid=grid, block=block, cluster=cluster, smem_bytes=smem_bytes, registers=registers)
    report = run(text, "k", launch, [*addresses, *more], memory, **choices)
    return out, report


def words(text: str, given: NDArray[Any] | None = None, **choices: Any) -> NDArray[np.uint32]:
    """The words that a body writes, one a thread."""
    block = choices.get("block", 32) * choices.get("grid", 1)
    out, _ = execute(text, given, out_bytes=4 * block, **choices)
    return out.view(np.uint32)
