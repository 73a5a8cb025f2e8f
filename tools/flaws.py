"""Compiles the kernels of the space with this environment's NVRTC and names those that are flawed: a spill, C75xx.

    python -m venv OTHER && OTHER/bin/pip install . nvidia-cuda-nvrtc==13.0.88     # what torch 2.11 brings
    OTHER/bin/python tools/flaws.py                  # few sizes in four layouts: 300 kernels, 6 minutes on 2 cores
    OTHER/bin/python tools/flaws.py --further 250    # and as many at random of other outs and batches

Releases of NVRTC place registers in other ways, and tests know one of them. Products are served whatever is found
(jit.build.warn_of_flaws); what spills has too few registers counted (Config.registers, legality.py).
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tilewright import settings
from tilewright.device import preset
from tilewright.jit.build import build, flaws
from tilewright.jit.nvrtc import compiler_version
from tilewright.jit.source import Source
from tilewright.kernels.catalog import offered_family
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem

DEVICE = preset("h200")
# Large, few rows, few tiles, a long k, odd pitches: together they are offered every form.
SIZES = (
    (4096, 4096, 4096),
    (777, 14336, 4096),
    (1024, 1024, 1024),
    (64, 4096, 4096),
    (512, 512, 16384),
    (16, 28672, 4096),
)
LAYOUTS = tuple(itertools.product("km", "kn"))
FURTHER: tuple[dict[str, Any], ...] = (
    {"out_dtype": "fp32"},
    {"out_dtype": "fp16"},
    {"out_major": "m"},
    {"batch": (6,)},
    {"batch": (2, 3)},
)


def problems(further: bool) -> Iterator[Problem]:
    """Each size in each layout; `further`: with other outs and batches, and with an n that TMA cannot store."""
    sizes = (*SIZES, (4097, 4095, 4096)) if further else SIZES
    for (m, n, k), (a_major, b_major), form in itertools.product(sizes, LAYOUTS, FURTHER if further else ({},)):
        yield packed(m, n, k, a_major=a_major, b_major=b_major, **form)


def units(chosen: Iterable[Problem]) -> list[Source]:
    """Every distinct kernel of their spaces."""
    found: dict[str, Source] = {}
    for problem in chosen:
        family = offered_family(problem, DEVICE)
        for config in family.space(problem, DEVICE):
            source = render(family, problem, config, DEVICE)
            found.setdefault(source.digest(""), source)
    return list(found.values())


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--further", type=int, default=0, metavar="N", help="kernels of other outs and batches")
    parser.add_argument("--most", type=int, metavar="N", help="of the first kind at most so many, at random")
    options = parser.parse_args(words)
    draw = random.Random(0)
    chosen = units(problems(False))
    if options.most is not None:
        chosen = draw.sample(chosen, min(options.most, len(chosen)))
    if options.further:
        others = units(problems(True))
        chosen += draw.sample(others, min(options.further, len(others)))
    num_flawed = 0
    with ThreadPoolExecutor(settings.COMPILE_THREADS.read()) as pool:
        for binary in pool.map(build, chosen):
            if found := flaws(binary):
                num_flawed += 1
                print(f"{binary.name}: {'; '.join(found)}", flush=True)
    print(f"{compiler_version()}: {num_flawed} of {len(chosen)} kernels are flawed")
    return 1 if num_flawed else 0


if __name__ == "__main__":
    sys.exit(main())
