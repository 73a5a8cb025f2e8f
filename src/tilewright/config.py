"""How a product is computed: the fields of a config, what they mean, and the words for them.

A Config is what the model chooses among and what a caller may name. What follows from its fields tiling.py computes,
what of it is legal legality.py knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from tilewright.errors import ConfigError
from tilewright.legality import KINDS, Rules, fields_of
from tilewright.tiling import Schedule


@dataclass(frozen=True, kw_only=True)
class Config(Rules):
    """One way to run the Hopper family.

    Units: tiles in elements; `stages` slots of the operand ring; `consumers` warpgroups that multiply, each with
    tile_m / consumers rows of every tile or, with `pingpong`, every second tile whole; `cluster_m` CTAs below
    each other share tiles of b by multicast, and `cluster_n` side by side tiles of a; `group_m` tile rows walked
    together by the grouped schedule, and in them squares of `square` x `square` tiles (0: none); `store_slots` slots of
    16 rows a warp through which out leaves. `tail_n` is the width of the narrow tiles that take the last wave's place
    (0: none); `staggered` runs a consumer's first row block ahead of its second, so that each is stored while the other
    multiplies; `k_back_and_forth` walks k backwards on every second tile of a CTA.

    `swap` computes out^T = b^T a^T and stores it transposed, so that the columns of out meet wgmma's 64 rows and its
    rows the 8, 16, 24 ... columns: for few rows. Then tile_m counts columns of out and tile_n rows (computed()).
    `split_k` CTAs, a cluster, share each tile: every one multiplies its part of k, and they add up in their order.
    `slices` equal parts of k are products of their own, a batch (sliced()), each with fp32 sums of its own in scratch;
    a second kernel, sums.cu, adds them in their order and rounds once. With `dependent_sums` that one may start while
    the last tiles are computed; it waits for them before it reads.
    `dependent_launch` lets the kernel start while the one before it in the stream still runs; it waits for that one
    before it touches memory.
    """

    family: ClassVar[str] = "hopper"  # whose kernel it is for
    reader: ClassVar[str] = "TMA"  # what brings a and b into shared memory
    # The steps of an epilogue that its kernel is rendered with.
    steps: ClassVar[frozenset[str]] = frozenset(
        {"alpha", "beta", "bias", "scale", "relu", "gelu", "silu", "add", "gated", "aux", "row_amax"}
    )

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2
    cluster_m: int = 1
    cluster_n: int = 1
    schedule: Schedule = "grouped"
    group_m: int = 16
    store_slots: int = 2
    pingpong: bool = False
    tail_n: int = 0
    staggered: bool = False
    k_back_and_forth: bool = False
    square: int = 0
    swap: bool = False
    split_k: int = 1
    dependent_launch: bool = False
    slices: int = 1
    dependent_sums: bool = False

    def __post_init__(self) -> None:
        """Keeps whole numbers of other libraries, NumPy's for one, as int. What is none is violations()' to refuse."""
        for field in fields_of(cast("Hashable", type(self))):
            value = getattr(self, field.name)
            if KINDS[field.type][0] is int and type(value) is not int and not isinstance(value, bool):
                with contextlib.suppress(TypeError):
                    object.__setattr__(self, field.name, operator.index(value))

    def beside_copies(self) -> Config:
        """This config for a kernel behind copies of its operands: it gets ready while they end, and waits for that."""
        return self.replace(dependent_launch=True)

    def replace(self, **changes: Any) -> Config:
        """This config with some fields changed.

        Raises: ConfigError: a name that is no field.
        """
        names = [field.name for field in dataclasses.fields(self)]
        unknown = [f"{name} is no field; fields are {', '.join(names)}" for name in changes if name not in names]
        if unknown:
            raise ConfigError(str(self), unknown)
        return dataclasses.replace(self, **changes)

    def words(self) -> tuple[str, ...]:
        """Every field as KEY=VALUE, which changes_from() reads back."""
        return tuple(f"{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self))

    def __str__(self) -> str:
        order = f"grouped{self.group_m}" if self.schedule == "grouped" else self.schedule
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k} s{self.stages} w{self.consumers} "
            f"c{self.cluster_m}x{self.cluster_n} {order} o{self.store_slots}"
            + (" pingpong" if self.pingpong else "")
            + (f" squares{self.square}" if self.square else "")
            + (f" tail{self.tail_n}" if self.tail_n else "")
            + (" staggered" if self.staggered else "")
            + (" k-back-and-forth" if self.k_back_and_forth else "")
            + (" swap" if self.swap else "")
            + (f" split{self.split_k}" if self.split_k != 1 else "")
            + (" dependent" if self.dependent_launch else "")
            + (f" slices{self.slices}" if self.slices != 1 else "")
            + (" dependent-sums" if self.dependent_sums else "")
        )


def changes_from(words: Iterable[str]) -> dict[str, int | bool | str]:
    """Fields of a Config from KEY=VALUE words: whole numbers, True and False become what they say, the rest stays text.

    Raises: ConfigError: a word without its "=" or with two, a key given twice. What values may be, violations() says.
    """
    changes: dict[str, int | bool | str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError("of the command line", [f"{word!r} is not KEY=VALUE, such as tile_n=192"])
        if "=" in value:
            raise ConfigError("of the command line", [f"{word!r} is more than one KEY=VALUE; give each by itself"])
        if key in changes:
            raise ConfigError("of the command line", [f"{key} is given twice: {changes[key]} and {value}"])
        if value.lower() in ("true", "false"):
            changes[key] = value.lower() == "true"
        else:
            # 18 digits: int() refuses thousands of them, and no field is near 10^18
            changes[key] = int(value) if re.fullmatch(r"[-+]?\d{1,18}", value) else value
    return changes
