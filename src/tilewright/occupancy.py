"""How many CTAs of a kernel an SM has room for, and which share of its warps that is: arithmetic, no device needed.

Theoretical: what registers, shared memory, warps and CTA places allow. What is achieved, a profiler says.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device import Device
from tilewright.errors import UnsupportedError
from tilewright.tiling import WARP_THREADS

# Warps and CTAs that are resident on an SM at most. Source: CUDA C++ programming guide, technical specifications per
# compute capability.
MAX_WARPS: dict[tuple[int, int], int] = {(8, 0): 64, (8, 6): 48, (8, 9): 48, (9, 0): 64}
MAX_CTAS: dict[tuple[int, int], int] = {(8, 0): 32, (8, 6): 16, (8, 9): 24, (9, 0): 32}
MAX_REGISTERS = 255  # of a thread, PTX ISA
PARTITIONS = 4  # of an SM: each has a quarter of the registers, and every fourth warp (CUDA occupancy calculator)
REGISTER_STEP = 8  # a warp takes registers in units of 256: of a thread in steps of 8 (CUDA occupancy calculator)
RESERVED_BYTES = 1024  # of shared memory that the system takes for each CTA (CUDA programming guide, 8.0 and later)


@dataclass(frozen=True)
class Occupancy:
    """What an SM holds at once. `limit` names what there is too little of for one more CTA."""

    ctas: int
    warps: int
    max_warps: int
    limit: str

    @property
    def share(self) -> float:
        """Of the warps that an SM can hold."""
        return self.warps / self.max_warps

    def __str__(self) -> str:
        return f"{self.ctas} CTAs, {self.warps} of {self.max_warps} warps ({self.share:.1%}), by {self.limit}"


def occupancy(device: Device, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """What an SM of the device holds of CTAs of `threads` threads with `registers` each and `smem_bytes`.

    Worked example: 256 threads of 128 registers on an A100 are 8 x 32 x 128 = 32,768 registers, so 2 CTAs, 16 of its
    64 warps: 25 %.
    Raises: UnsupportedError: a compute capability of which the limits are not known.
    """
    if device.sm not in MAX_WARPS:
        raise UnsupportedError(
            asked=f"the occupancy of compute capability {device.sm[0]}.{device.sm[1]}",
            rule=f"its warps an SM are not in the table, which has {', '.join(f'{a}.{b}' for a, b in MAX_WARPS)}",
            works="name a device of those",
        )
    warps = -(-threads // WARP_THREADS)
    held = -(-max(registers, 1) // REGISTER_STEP) * REGISTER_STEP * WARP_THREADS  # of a warp
    room = {
        "registers": device.registers_per_sm // PARTITIONS // held * PARTITIONS // warps,
        "shared memory": device.smem_per_sm_bytes // (smem_bytes + RESERVED_BYTES),
        "warps": MAX_WARPS[device.sm] // warps,
        "CTA places": MAX_CTAS[device.sm],
    }
    limit = min(room, key=lambda name: room[name])
    return Occupancy(ctas=room[limit], warps=room[limit] * warps, max_warps=MAX_WARPS[device.sm], limit=limit)


def register_budget(device: Device, threads: int, ctas: int) -> int:
    """Registers a thread at most, where `ctas` CTAs of `threads` threads shall be on an SM at once.

    Worked example: 2 CTAs of 256 threads: 65,536 / 512 = 128; 3: 85, so 80; 1: 255, the most that there is. 5 CTAs of
    64 are 10 warps, of which one partition has 3: 16,384 / 96 = 170, so 168.
    """
    warps = -(-(-(-threads // WARP_THREADS) * ctas) // PARTITIONS)  # of the fullest partition
    share = device.registers_per_sm // PARTITIONS // (warps * WARP_THREADS)
    return min(share // REGISTER_STEP * REGISTER_STEP, MAX_REGISTERS)
