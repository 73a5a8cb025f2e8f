"""What can be said about a product before it runs: an Explanation, and the copies and sums round the product's kernel.

Plain values and their text; who fills them in, plan.py, knows where the facts come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.backends.base import Launch
from tilewright.config import Config
from tilewright.device import Device
from tilewright.order import Reduction
from tilewright.problem import Problem
from tilewright.records import Record


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The copy of operands that the kernel's loads, `reader`, cannot read where they lie, before the product.

    Units: bytes; `scratch_bytes` is what is allocated for it, `predicted_us` in microseconds.
    """

    operands: tuple[str, ...]
    reader: str
    launch: Launch
    read_bytes: int
    written_bytes: int
    scratch_bytes: int
    predicted_us: float

    def __str__(self) -> str:
        return (
            f"repack {' and '.join(self.operands)}, which {self.reader} cannot read there: {self.launch.grid} CTAs of "
            f"{self.launch.block} threads, {self.read_bytes / 1e6:.1f} MB read, {self.written_bytes / 1e6:.1f} MB "
            f"written to {self.scratch_bytes / 1e6:.1f} MB of scratch, {self.predicted_us:.1f} us"
        )


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What adds the slices of k up behind the product.

    Units: as Copies.
    """

    slices: int
    launch: Launch
    read_bytes: int
    written_bytes: int
    predicted_us: float

    def __str__(self) -> str:
        return (
            f"add {self.slices} slices of k in their order: {self.launch.grid} CTAs of {self.launch.block} threads, "
            f"{self.read_bytes / 1e6:.1f} MB of scratch read, {self.written_bytes / 1e6:.1f} MB written, "
            f"{self.predicted_us:.1f} us"
        )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a product runs as it does. str() gives it as lines.

    Units: `grid` in CTAs, `waves` tiles a CTA, `registers` a thread, `smem_bytes` a CTA; `predicted_us` and the terms
    in microseconds; `roofline_share` the part of the device's peak rate that the prediction reaches. `record` is the
    measurement that the config comes from, None where the model or the caller chose. `price` is what an invariant
    order of summation costs: the time predicted here over that of the choice without it, `fast`; 1 where that is the
    same, and less where `fast` is of record, which `fast_why` then tells, and the model would have chosen otherwise.
    `copies` is what runs before the product, and in the prediction, where an operand's rows or address are no multiples
    of 16 bytes. `sums` is what runs behind it, in the prediction as well, where k is cut into slices.
    """

    problem: Problem
    device: Device
    kernel: str
    config: Config
    why: str
    launch: Launch
    waves: float
    registers: int
    spill_bytes: int
    predicted_us: float
    terms: tuple[tuple[str, float], ...]
    bound: str
    roofline_share: float
    record: Record | None = None
    reduction: Reduction = "fast"
    fast: Config | None = None
    fast_why: str = ""
    price: float = 1.0
    copies: Copies | None = None
    sums: Sums | None = None

    @property
    def grid(self) -> int:
        """CTAs of the launch."""
        return self.launch.grid

    @property
    def smem_bytes(self) -> int:
        """Bytes of dynamic shared memory a CTA."""
        return self.launch.smem_bytes

    def __str__(self) -> str:
        if self.problem.is_empty:
            return f"{self.problem}: no multiplication; out is {'empty' if self.problem.k else 'zeros'}, no kernel runs"
        launch = self.launch
        clusters = f"clusters of {launch.cluster}, {self.waves:.2f} waves"
        spills = f"{self.spill_bytes} bytes of spills" if self.spill_bytes else "no spills"
        smem = f"{launch.smem_bytes} bytes of shared memory a CTA"
        share = f"{self.roofline_share:.0%} of the roofline, bound by {self.bound}"
        return "\n".join(
            (
                f"problem    {self.problem} on {self.device}",
                *(() if self.copies is None else (f"first      {self.copies}",)),
                f"kernel     {self.kernel}, config {self.config}",
                f"why        {self.why}",
                *self._reduction_lines(),
                f"launch     {launch.grid} CTAs of {launch.block} threads, {clusters}",
                *(() if self.sums is None else (f"then       {self.sums}",)),
                f"resources  {self.registers} registers a thread, {smem}, {spills}",
                f"predicted  {self.predicted_us:.1f} us, {share}",
                f"terms      {', '.join(f'{name} {time_us:.1f} us' for name, time_us in self.terms)}",
            )
        )

    def _reduction_lines(self) -> tuple[str, ...]:
        if self.reduction == "fast":
            return ()
        price = f"price by the model {self.price:.3f} times the fast choice's time, {self.fast}"
        if self.fast == self.config:
            price = "costs nothing here: the fast choice is the same"
        elif self.fast_why:
            doubt = "; below 1 the model is wrong about one of the two" if self.price < 1 else ""
            price = f"{price}, which is {self.fast_why}{doubt}"
        return (f"reduction  {self.reduction}: the bits of a row do not depend on the other rows; {price}",)
