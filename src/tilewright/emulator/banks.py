"""Shared-memory bank conflicts: counted for accesses whose addresses threads compute, judged by rule for TMA and wgmma.

Knows 32 banks of 4 bytes and how an access splits into phases. Knows nothing of the machine or of time.

A *wavefront* is one pass over the banks. A phase needs as many as the bank that is asked for the most distinct words;
one word for many lanes is one request. Source: CUDA programming guide, shared memory; the phases of 8- and 16-byte
accesses are the half and quarter warps of NVIDIA's GTC material, two of which a load joins where lanes pair (NVIDIA's
developer forum, 77228). Counters of an H200 agree: docs/emulator-hardware.md, "Bank conflicts".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.fragments import CHUNK_BYTES, CORE_ROWS, WARP_LANES, wgmma_offsets
from tilewright.emulator.tiled import TiledMap, shared_chunks

NUM_BANKS = 32
BANK_BYTES = 4


@dataclass(frozen=True)
class Count:
    """Wavefronts that an access takes, and what it would take without a conflict."""

    wavefronts: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal

    def __add__(self, other: Count) -> Count:
        return Count(self.wavefronts + other.wavefronts, self.ideal + other.ideal)


def access(
    addresses: NDArray[Any], num_bytes: int, active: NDArray[np.bool_] | None = None, *, is_load: bool = False
) -> Count:
    """ld.shared (`is_load`), st.shared, atom.shared and cp.async of 1 .. 16 bytes a lane.

    Shapes: addresses (32,) or (warps, 32), byte addresses; `active` the same. Up to 4 bytes a lane: one phase a warp;
    8 bytes two, 16 bytes four. Of a load in which each active lane t has the address of lane t ^ 1, or each that of
    lane t ^ 2, half as many: it returns each register but once for the pair. A phase without an active lane costs
    nothing.
    """
    lanes = np.asarray(addresses, np.int64).reshape(-1, WARP_LANES)
    running = np.ones(lanes.shape, bool) if active is None else np.asarray(active).reshape(lanes.shape)
    words_each = max(num_bytes // BANK_BYTES, 1)
    if not is_load or words_each == 1:
        return _phases(lanes, running, words_each, WARP_LANES // words_each)
    paired = _is_paired(lanes, running)
    return _phases(lanes[paired], running[paired], words_each, 2 * WARP_LANES // words_each) + _phases(
        lanes[~paired], running[~paired], words_each, WARP_LANES // words_each
    )


def _is_paired(lanes: NDArray[np.int64], running: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of each warp (warps, 32), whether all its lanes pair with a neighbour, or all with the next but one."""
    found = np.zeros(len(lanes), bool)
    for distance in (1, 2):
        partner = np.arange(WARP_LANES) ^ distance
        found |= ((lanes == lanes[:, partner]) | ~running | ~running[:, partner]).all(axis=1)
    return found


def _phases(lanes: NDArray[np.int64], running: NDArray[np.bool_], words_each: int, lanes_each: int) -> Count:
    """Warps (warps, 32) in phases of so many lanes, each with so many words."""
    if not len(lanes):
        return Count()
    words = lanes.reshape(-1, lanes_each, 1) // BANK_BYTES + np.arange(words_each)
    counted = np.repeat(running.reshape(-1, lanes_each, 1), words_each, axis=2)
    return _count(words.reshape(len(words), -1), counted.reshape(len(words), -1))


def matrix(row_addresses: NDArray[Any]) -> Count:
    """ldmatrix and stmatrix, and any reader of core matrices: one phase for each eight 16-byte rows.

    Shapes: (8 x num,) or (warps, 8 x num) row addresses; of ldmatrix the lanes that give them.
    """
    rows = np.asarray(row_addresses, np.int64).reshape(-1, CORE_ROWS, 1)
    words = rows // BANK_BYTES + np.arange(CHUNK_BYTES // BANK_BYTES)
    words = words.reshape(len(words), -1)
    return _count(words, np.ones(words.shape, bool))


def _count(words: NDArray[np.int64], counted: NDArray[np.bool_]) -> Count:
    """Wavefronts of phases (phases, words). Ideal: the distinct words spread evenly over the banks."""
    words = np.sort(np.where(counted, words, -1), axis=1)
    first = np.ones(words.shape, bool)
    first[:, 1:] = words[:, 1:] != words[:, :-1]
    first &= words >= 0
    phase = np.broadcast_to(np.arange(len(words))[:, None], words.shape)[first]
    loads = np.bincount(phase * NUM_BANKS + words[first] % NUM_BANKS, minlength=len(words) * NUM_BANKS)
    distinct = first.sum(axis=1)
    return Count(int(loads.reshape(-1, NUM_BANKS).max(axis=1).sum()), int((-(-distinct // NUM_BANKS)).sum()))


def judge_wgmma(descriptor: int, rows: int, k: int, bits: int, k_major: bool) -> Count:
    """How often the core matrices (8 x 16 bytes) of a wgmma operand hit a bank twice, by rule.

    A core matrix is eight rows of 16 bytes that are contiguous along k, or along m or n when k is not contiguous.
    """
    _, offsets = wgmma_offsets(descriptor, rows, k, bits, k_major)
    per_chunk = CHUNK_BYTES // (bits // 8)
    contiguous = offsets if k_major else offsets.T  # (slow, contiguous)
    slow = contiguous.shape[0] // CORE_ROWS * CORE_ROWS
    starts = contiguous[:slow, ::per_chunk].T.reshape(-1, CORE_ROWS)
    return matrix(starts)


def judge_tma(tensor_map: TiledMap, read_by: Literal["ldmatrix", "wgmma", "rows"]) -> str | None:
    """What is wrong with reading this map's boxes from shared memory in that way; None when the rule finds nothing.

    "rows": each lane reads along its own row. By rule, from a box that starts at a multiple of 1024.
    """
    num_rows = min(tensor_map.box_bytes // tensor_map.row_bytes, CORE_ROWS)
    if num_rows < CORE_ROWS:
        return None
    chunks = shared_chunks(num_rows, tensor_map.row_bytes, tensor_map.swizzle_bytes, 0)
    found = matrix(chunks.T)
    ways = found.wavefronts // max(found.ideal, 1)
    if ways <= 1:
        return None
    best = next((s for s in (32, 64, 128) if s >= tensor_map.row_bytes), 128)
    return (
        f"8 rows of {tensor_map.row_bytes} bytes read by {read_by} hit each bank {ways} times with a swizzle of "
        f"{tensor_map.swizzle_bytes} bytes; a {best}-byte swizzle"
        + ("" if tensor_map.row_bytes <= best else " and boxes of that width")
        + " has no conflict"
    )
