"""Small units for the tests of jit, importable from their processes too."""

from __future__ import annotations

from typing import Any

from tilewright.jit.source import Source

UNIT = """\
#include "config.cuh"
extern "C" __global__ void scale(float* values) {
  values[threadIdx.x] *= scaled(FACTOR);
}
"""
HEADERS = (
    ("config.cuh", '#pragma once\n#include "ptx/part.cuh"\n#define FACTOR 2.0f\n'),
    (
        "ptx/part.cuh",
        '#pragma once\n__device__ inline float scaled(float x) {\n  asm volatile("");\n  return x + 1.0f;\n}\n',
    ),
)


def make_source(**changes: Any) -> Source:
    fields: dict[str, Any] = {
        "name": "scale",
        "text": UNIT,
        "headers": HEADERS,
        "entry": "scale",
        "arch": "sm_90a",
        "options": (),
    }
    return Source(**{**fields, **changes})


def numbered(number: int) -> Source:
    """Units that differ in one constant, and so in their machine code."""
    return make_source(text=UNIT.replace("FACTOR", f"(FACTOR + {number}.0f)"))
