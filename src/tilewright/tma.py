"""What TMA, the tensor memory accelerator, reaches: extents, pitches and distances, and which of them it refuses.

Knows strides and element types; which of a product's matrices they belong to, problem.py knows.
"""

from __future__ import annotations

from tilewright.dtypes import DType

# A tensor map has 5 dimensions (CUDA driver API, cuTensorMapEncodeTiled), two of which are a matrix.
MAX_BATCH_DIMS = 3

# TMA coordinates are 32-bit signed and a tile may start past the end of its matrix by less than 2^9.
MAX_EXTENT = 2**31 - 512
# cuTensorMapEncodeTiled: strides in bytes are below 2^40 and, like the base address, multiples of 16.
MAX_PITCH_BYTES = 2**40
TMA_ALIGNMENT_BYTES = 16


def pitch_refusal(row_extent: int, pitch: int, dtype: DType) -> str:
    """The rule of TMA that rows `pitch` elements apart break; empty where it can read them."""
    pitch_bytes = pitch * dtype.size
    if pitch < row_extent:
        return f"rows of {row_extent} elements must not overlap"
    if pitch_bytes >= MAX_PITCH_BYTES:
        return f"TMA needs row pitches below 2^40 bytes, this one is {pitch_bytes}"
    if pitch_bytes % TMA_ALIGNMENT_BYTES:
        return (
            f"TMA reads rows whose pitch is a multiple of {TMA_ALIGNMENT_BYTES} bytes, "
            f"{pitch} x {dtype.size} is {pitch_bytes}"
        )
    return ""


def batch_refusal(stride: int, dtype: DType) -> str:
    """The rule of TMA that matrices `stride` elements apart break; empty where it can read them. 0: always the same."""
    stride_bytes = stride * dtype.size
    if stride_bytes % TMA_ALIGNMENT_BYTES:
        return (
            f"TMA reads matrices that lie multiples of {TMA_ALIGNMENT_BYTES} bytes apart, "
            f"{stride} x {dtype.size} is {stride_bytes}"
        )
    return stride_refusal("batch", stride, dtype)


def stride_refusal(of: str, stride: int, dtype: DType) -> str:
    """The rule that keeps any kernel from reading rows or matrices `stride` elements apart; empty where one can."""
    if stride < 0:
        return f"{of} strides are from 0 up: what runs backwards (flip) cannot be read"
    if stride * dtype.size >= MAX_PITCH_BYTES:
        return f"{of} strides are below 2^40 bytes, this one is {stride * dtype.size}"
    return ""
