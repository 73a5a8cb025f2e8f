"""What declarations may say: how many registers and bytes, which alignments, which initial values. Pure functions."""

from __future__ import annotations

import math
import struct

from tilewright.emulator.syntax import TYPE_BYTES, Imm

MAX_REGISTERS = 1 << 18  # of an entry, before registers are allocated: real kernels have some ten thousand
MAX_PARAMETER_BYTES = 32764  # Source: PTX ISA, kernel function parameters, since PTX 8.1 and sm_70

# Bytes of variables. Source: CUDA Programming Guide, compute capabilities: local memory a thread, constant memory. Of
# global memory: a slip of the pen must not take the machine's. Shared memory is the launch's: run.py.
LIMIT_BYTES = {"local": 512 << 10, "const": 64 << 10, "global": 1 << 30}


def padded(num_bytes: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return -(-num_bytes // alignment) * alignment


def alignment_fault(alignment: int) -> str:
    """What is wrong with it, "" if nothing."""
    if alignment < 1 or alignment & (alignment - 1):
        return f".align {alignment} is no positive power of two"
    return ""


def initial_bytes(literal: Imm, kind: str) -> bytes | None:
    """A variable's initial value in memory; None where the type has no such value."""
    size, value = TYPE_BYTES[kind], literal.value
    if kind in ("f32", "f64"):
        if literal.bits and literal.bits < 1 << (8 * size):
            return literal.bits.to_bytes(size, "little")
        try:
            return struct.pack("<f" if kind == "f32" else "<d", value)
        except (OverflowError, struct.error):  # past the largest number
            return None
    if literal.bits:
        value = literal.bits
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return None
    return (int(value) % (1 << (8 * size))).to_bytes(size, "little")
