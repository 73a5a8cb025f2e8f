"""What the bits of an element of out depend on: the order in which a config adds the products along k.

An element is one chain of wgmmas, or of mma.sync, each of which adds 16 products and the sum so far as one block
(emulator/sums.py: the rule that gave every recorded sum of an H200 bit for bit). So its bits depend on the order of the
chain, and on where it is cut into parts that are added afterwards. They do not depend on where in which tile the
element lies, how wide the instruction is, which CTA works on it and when, or how it is stored: every way out rounds
once, to nearest.

Knows nothing of how a config is chosen; model.py and choice.py ask what they may choose from.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.config import Config
from tilewright.errors import UnsupportedError

Reduction = Literal["fast", "invariant"]
REDUCTIONS: tuple[Reduction, ...] = ("fast", "invariant")

# The fields that move no bit. One that is not named here counts as part of the order: a new field costs an invariant
# choice some of its freedom until somebody has compared bits (tests/test_order.py, test_invariance_on_gpu.py).
INDIFFERENT: frozenset[str] = frozenset(
    {
        "tile_m", "tile_n", "tail_n",  # where the element lies, and the width of its wgmma
        "tile_k",  # how many blocks of 16 products are in a slot, and zeros behind the last
        "warps_m", "warps_n", "ahead", "prefetch", "ctas", "split_barrier",  # of AmpereConfig: who works and when
        "stages", "consumers", "pingpong", "staggered", "store_slots",  # who works on it, when, and how it is stored
        "swap",  # which operand is wgmma's a: a product of two numbers has no order
        "dependent_launch",  # when it may start; dependent_sums moves no bit either, but goes with slices, which do
        "cluster_m", "cluster_n", "schedule", "group_m", "square",  # on which SM, after which other tile
    }
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    """An order of summation: the values of the fields that it depends on. Equal orders give equal bits."""

    values: tuple[tuple[str, Any], ...]

    def of(self, config: Config) -> Config:
        """The config with this order, and all else as it was; legal or not."""
        return config.replace(**dict(self.values))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)


def order_of(config: Config) -> Order:
    """The order in which a config adds."""
    return Order(
        tuple(
            (field.name, getattr(config, field.name))
            for field in dataclasses.fields(config)
            if field.name not in INDIFFERENT
        )
    )


# The order of every invariant product: k from 0 up in one chain, the default of each field. One for all, and no rule of
# n or k: a batch whose matrices share an operand is folded into one with more rows or columns (batching.py), an out in
# columns exchanges m and n, and neither may move a bit.
INVARIANT = order_of(Config())


def order_for(reduction: Reduction) -> Order | None:
    """The order that a choice must keep; None where any will do."""
    return INVARIANT if reduction == "invariant" else None


def checked_reduction(reduction: object) -> Reduction:
    """`reduction` itself, when it is one.

    Raises: UnsupportedError: it is none.
    """
    for known in REDUCTIONS:
        if type(reduction) is str and reduction == known:
            return known
    shown = repr(reduction)
    raise UnsupportedError(
        asked=f"reduction = {shown[:60]}{'...' if len(shown) > 60 else ''}",
        rule='it is "fast", the fastest order of summation for each shape, or "invariant", one order for all shapes',
        works='pass reduction="invariant" where the bits of a row may not depend on the other rows',
    )
