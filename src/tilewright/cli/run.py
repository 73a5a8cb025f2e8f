"""`tilewright run M N K`: the main job, from sizes to a checked and timed product.

Plans and compiles anywhere. Where a GPU can run the kernel it runs, every element is checked, and cuBLAS is timed
beside it when torch is there; elsewhere the reason why nothing was executed is part of the answer.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import request, terminal
from tilewright.cli.request import BMajor
from tilewright.cli.show import resource_facts

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.plan import Plan
    from tilewright.problem import Problem


def run(
    m: request.M,
    n: request.N,
    k: request.K,
    dtype: request.DTypeOption = "bf16",
    out_dtype: request.OutDTypeOption = None,
    b_major: request.BMajorOption = BMajor.k,
    config: request.ConfigOption = None,
    device: request.DeviceOption = None,
    num_sms: request.NumSmsOption = None,
    steady: Annotated[bool, typer.Option("--steady", help="Time under sustained load too, with power and clock.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Multiply: plan, compile, run, check against float64 and time against cuBLAS."""
    problem = request.problem(m, n, k, dtype, out_dtype, b_major)
