"""How the boxes of TMA and the operands of wgmma lie in shared memory, judged by rule: the hardware makes their
addresses, so there is nothing to count. One row for each pattern of an instruction.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from tilewright.emulator import banks, fragments
from tilewright.emulator.banks import Count
from tilewright.emulator.events import Site
from tilewright.emulator.tiled import TiledMap

_START_PERIOD = 1024  # bytes: where an operand starts beyond that changes no bank


@dataclass
class Pattern:
    """One way in which an instruction used shared memory. `verdict` is "" where the rule finds no conflict.

    Units: `uses` operands or boxes; `wavefronts` and `ideal` of all uses, 0 for boxes.
    """

    site: Site
    what: str
    uses: int = 0
    wavefronts: int = 0
    ideal: int = 0
    verdict: str = ""


@dataclass
class Patterns:
    """The patterns of one launch. `read_by`: how the kernel reads what TMA brings."""

    read_by: str
    rows: dict[tuple[Site, str], Pattern] = field(default_factory=dict)

    def operand(self, site: Site, name: str, descriptor: int, rows: int, k: int, bits: int, k_major: bool) -> None:
        """An operand that a wgmma read from shared memory."""
        found = fragments.decode_descriptor(descriptor)
        row = self._row(
            site,
            f"{name} {rows}x{k} of {bits} bits, {'k' if k_major else 'mn'}-major, "
            f"{_swizzle(found.swizzle_bytes)}, leading {found.leading} and stride {found.stride} bytes",
        )
        count = _judged(_canonical(descriptor), rows, k, bits, k_major)
        row.uses += 1
        row.wavefronts += count.wavefronts
        row.ideal += count.ideal
        if count.conflicts:
            row.verdict = "rows of its core matrices meet in banks; use a swizzle, or contiguous core matrices"

    def box(self, site: Site, tensor_map: TiledMap, num_targets: int) -> None:
        """A box that TMA brought into shared memory."""
        box = "x".join(map(str, tensor_map.box))
        text = f"box {box} of {tensor_map.element}, rows of {tensor_map.row_bytes} bytes"
        multicast = f", multicast to {num_targets}" if num_targets > 1 else ""
        row = self._row(site, f"{text}, {_swizzle(tensor_map.swizzle_bytes)}{multicast}")
        if not row.uses:
            row.verdict = _judged_box(tensor_map, self.read_by)
        row.uses += 1

    def _row(self, site: Site, what: str) -> Pattern:
        found = self.rows.get((site, what))
        if found is None:
            found = self.rows[site, what] = Pattern(site, what)
        return found


def _swizzle(num_bytes: int) -> str:
    return f"{num_bytes}-byte swizzle" if num_bytes else "no swizzle"


def _canonical(descriptor: int) -> int:
    """The descriptor of the same pattern in the first _START_PERIOD bytes."""
    mask = (1 << 14) - 1
    return descriptor & ~mask | descriptor & (_START_PERIOD // 16 - 1)


@functools.lru_cache(maxsize=1024)
def _judged(descriptor: int, rows: int, k: int, bits: int, k_major: bool) -> Count:
    return banks.judge_wgmma(descriptor, rows, k, bits, k_major)


def _judged_box(tensor_map: TiledMap, read_by: str) -> str:
    if read_by == "wgmma":  # judged by its descriptors, operand by operand
        return ""
    return banks.judge_tma(tensor_map, "ldmatrix" if read_by == "ldmatrix" else "rows") or ""
