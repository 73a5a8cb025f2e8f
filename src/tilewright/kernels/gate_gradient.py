"""The kernel that makes the gradient of gate and up from that of what they gave: its unit and its launch.

It computes no product, so it is no Family. Who calls it, and what for: frontends/torch/gate_gradient.py.
"""

from __future__ import annotations

from tilewright.backends.base import Argument, IntArgument, Launch, PointerArgument
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.epilogue_steps import Activation, Split
from tilewright.jit.source import Source
from tilewright.kernels.render import constants_header, unit

NAME = "gate_gradient"
COLUMNS = 8  # of a chunk: 16 bytes of grad
THREADS = 256
MAX_CHUNKS = 2**31 - 1  # what a kernel counts
CTAS_PER_SM = 8  # 2048 threads an SM, of at most 32 registers
WAVES = 64  # of them at most: later ones begin where earlier ones end, as in kernels/repack.py


def source(dtype: DType, activation: Activation, split: Split, device: Device) -> Source:
    """The unit: one for each type, activation and order of columns."""
    constants: dict[str, int | bool | str] = {
        "THREADS": THREADS,
        "OUT_TYPE": f"Type::{dtype}",
        "ACTIVATION": f"Activation::{activation}",
        "IS_INTERLEAVED": split == "interleaved",
    }
    header = constants_header(constants, ("slopes.cuh",))
    return unit(f"{NAME}_{dtype}_{activation}_{split}", f"{NAME}.cu", NAME, {"config.cuh": header}, device)


def num_chunks(rows: int, columns: int) -> int:
    """Chunks of `rows` rows of grad, `columns` elements each."""
    return rows * (columns // COLUMNS)


def is_served(rows: int, columns: int) -> bool:
    """Whether the kernel cuts rows of so many columns into whole chunks, and counts them all."""
    return columns % COLUMNS == 0 and 0 < num_chunks(rows, columns) <= MAX_CHUNKS - 2**28  # a step past the last


def launch(rows: int, columns: int, device: Device) -> Launch:
    """A thread a chunk, in no more than WAVES waves."""
    needed = -(-num_chunks(rows, columns) // THREADS)
    return Launch(grid=min(needed, device.num_sms * CTAS_PER_SM * WAVES), block=THREADS, cluster=1, smem_bytes=0)


def arguments(rows: int, columns: int, grad_pitch: int, dtype: DType) -> tuple[Argument, ...]:
    """The parameters in order. Units: `grad_pitch` in elements."""
    row_bytes = columns * dtype.size
    return (
        PointerArgument("grad", (rows - 1) * grad_pitch * dtype.size + row_bytes, granule_bytes=16),
        PointerArgument("pre", rows * 2 * row_bytes, granule_bytes=16),
        PointerArgument("gradient", rows * 2 * row_bytes, granule_bytes=16),
        IntArgument("grad_pitch", grad_pitch * dtype.size, 8),
        IntArgument("row_chunks", columns // COLUMNS, 4),
        IntArgument("num_chunks", num_chunks(rows, columns), 4),
    )
