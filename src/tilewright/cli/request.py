"""The options that name one product and how it is to be computed, and the plan that they ask for.

Every command that takes sizes takes these, spelled alike. What is legal is not known here: Problem and Config refuse.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.plan import Plan
    from tilewright.problem import Problem

DEFAULT_PRESET = "h200"  # the device that the shipped choices were measured on


class AMajor(StrEnum):
    """Which dimension of a is contiguous."""

    k = "k"
    m = "m"


class BMajor(StrEnum):
    """Which dimension of b is contiguous."""

    k = "k"
    n = "n"


class OutMajor(StrEnum):
    """Which dimension of out is contiguous."""

    n = "n"
    m = "m"


class Reduction(StrEnum):
    """What the order of summation may depend on; order.py has the words."""

    fast = "fast"
    invariant = "invariant"


M = Annotated[int, typer.Argument(metavar="M", help="Rows of a and of out.")]
N = Annotated[int, typer.Argument(metavar="N", help="Columns of b and of out.")]
K = Annotated[int, typer.Argument(metavar="K", help="Columns of a, rows of b.")]
DTypeOption = Annotated[str, typer.Option("--dtype", metavar="bf16|fp16|int8|tf32", help="Element type of a and b.")]
OutDTypeOption = Annotated[
    str | None,
    typer.Option("--out-dtype", metavar="TYPE", help="Element type of out: bf16, fp16 or fp32; of int8 int32."),
]
SumsOption = Annotated[
    str | None,
    typer.Option("--sums", metavar="fp16", help="What products are summed in; default: fp32, of int8 int32."),
]
AMajorOption = Annotated[
    AMajor, typer.Option("--a-major", help="Contiguous dimension of a: m for the transpose of a (K, M) array.")
]
BMajorOption = Annotated[
    BMajor, typer.Option("--b-major", help="Contiguous dimension of b: k for an (N, K) weight's transpose.")
]
OutMajorOption = Annotated[OutMajor, typer.Option("--out-major", help="Contiguous dimension of out: m for columns.")]
BatchOption = Annotated[
    list[int] | None,
    typer.Option(
        "--batch", metavar="COUNT", min=1, help="As many products in one launch. Repeatable: a dimension each."
    ),
]
ContiguousOption = Annotated[
    bool, typer.Option("--contiguous", help="a and b without padding, so that TMA may not read their rows in place.")
]
PaddedOption = Annotated[
    bool, typer.Option("--padded", help="a and b with rows padded to 16 bytes; else contiguous, as plain arrays are.")
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="Change a field of the config: tile_n=192. Repeatable."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="PRESET", help="Plan for h200, h100 ... and not for the GPU present.")
]
NumSmsOption = Annotated[int | None, typer.Option("--num-sms", min=1, help="SMs to run on; all when left out.")]
ReductionOption = Annotated[
    Reduction, typer.Option("--reduction", help="invariant: the bits of a row depend on no other row.")
]


def problem(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str,
    out_dtype: str | None,
    sums: str | None = None,
    a_major: AMajor = AMajor.k,
    b_major: BMajor = BMajor.k,
    out_major: OutMajor = OutMajor.n,
    batch: list[int] | None = None,
    contiguous: bool = False,
) -> Problem:
    """The product of freshly allocated matrices, or a batch of such products.

    Raises: ShapeError, LayoutError, DTypeError: see packing.packed.
    """
    from tilewright.packing import packed  # NumPy and ml_dtypes, 200 ms that --help does not need

    return packed(
        m,
        n,
        k,
        dtype=dtype,
        out_dtype=out_dtype,
        sums=sums,
        a_major="k" if a_major is AMajor.k else "m",
        b_major="k" if b_major is BMajor.k else "n",
        out_major="n" if out_major is OutMajor.n else "m",
        batch=batch or (),
        padded=not contiguous,
    )


def preset(name: str | None) -> Device:
    """The preset called `name`, or the default one.

    Raises: UnsupportedError: no such preset.
    """
    from tilewright import device  # see problem()

    return device.preset(name or DEFAULT_PRESET)


def plan(
    problem: Problem,
    device: Device,
    *,
    config: list[str] | None = None,
    num_sms: int | None = None,
    reduction: Reduction = Reduction.fast,
) -> Plan:
    """The plan of `problem` on `device`, with the model's choice changed by the KEY=VALUE words of `config`.

    Raises: ConfigError: with every reason why the config cannot run. ShapeError: the product needs no kernel.
    """
    from tilewright.config import changes_from  # see problem()
    from tilewright.dispatch import plan as make_plan  # see problem()
    from tilewright.errors import ShapeError

    if problem.is_empty:
        raise ShapeError(
            asked=f"a kernel for {problem}",
            rule="a size of 0 leaves nothing to multiply: matmul returns an empty or zero out and launches no kernel",
            works="give sizes from 1 up",
        )
    changes = changes_from(config or ()) or None
    return make_plan(problem, device=device, config=changes, num_sms=num_sms, reduction=reduction.value)
