"""(family, problem, config) -> Source: the family's file, the shared device code, and the rendered headers.

Constants cross into C++ by name, in one struct. The wgmma wrapper is rendered for exactly the config's shape and type.
Knows nothing of NVRTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from tilewright.config import Config
from tilewright.device import Device
from tilewright.dtypes import DType
from tilewright.jit.source import Source, included
from tilewright.kernels.family import Family
from tilewright.problem import Problem


def render(family: Family, problem: Problem, config: Config, device: Device, wait_limit: int = 0) -> Source:
    """The whole unit of one kernel.

    `wait_limit` bounds every wait for a barrier in a debug build: after so many tries the grid traps; 0 waits forever.
    """
    rendered = family.headers(problem, config, wait_limit)
    return unit(f"{family.name}_{_slug(problem, config)}", family.source, family.entry, rendered, device)


def unit(name: str, path: str, entry: str, rendered: Mapping[str, str], device: Device) -> Source:
    """The file `path` of kernels/cuda with what it includes of that folder and of the rendered headers."""
    headers = {**device_code(), **rendered}
    text = headers.pop(path)
    used = _closure(text, headers)
    return Source(
        name=name,
        text=text,
        headers=tuple(sorted((path, headers[path]) for path in used)),
        entry=entry,
        arch=device.arch,
    )


def constants_header(constants: Mapping[str, int | bool | str]) -> str:
    """config.cuh: every constant of a kernel by name, int, bool or a word of an enumeration."""
    lines = [
        "// Rendered for one kernel by kernels/render.py. The copy in the source tree is the default, for editors.",
        "#pragma once",
        "",
        '#include "base.cuh"',
        "",
        "struct Config {",
    ]
    for name, value in constants.items():
        if isinstance(value, bool):
            lines.append(f"    static constexpr bool {name} = {str(value).lower()};")
        elif isinstance(value, int):
            lines.append(f"    static constexpr int {name} = {value};")
        else:
            lines.append(f"    static constexpr {value.split('::')[0]} {name} = {value};")
    return "\n".join([*lines, "};", ""])


def wgmma_header(n: int, dtype: DType, b_k_major: bool) -> str:
    """wgmma_mma_async.cuh: the one wgmma of a kernel, m64 n`n` k16, fp32 accumulators, both operands in smem.

    Source: PTX ISA, wgmma.mma_async: n / 2 accumulators a thread, descriptors of a and b, scale-d, the signs of a and
    b, and whether each is transposed (m or n contiguous).
    """
    count = n // 2
    rows = [range(first, min(first + 8, count)) for first in range(0, count, 8)]
    registers = "\n".join(
        f'        "{", ".join(f"%{i}" for i in row)}{", " if row[-1] < count - 1 else ""}"' for row in rows
    )
    operands = ",\n          ".join(", ".join(f'"+f"(rC[{i}])' for i in row) for row in rows)
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype.ptx}.{dtype.ptx}"
    return f"""\
// Rendered for one shape and type by kernels/render.py. The copy in the source tree is the default, for editors.
#pragma once

#include "base.cuh"

namespace ptx {{

// PTX ISA, wgmma.mma_async: a warpgroup. rC (64, {n}) = a (64, 16) x b (16, {n}), plus rC where `accumulate`.
// Reads shared memory through the async proxy; rC may not be touched before a wait_group covers it.
DEVICE void wgmma_mma_async(float (&rC)[{count}], uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate) {{
    asm volatile(
        "{{\\n"
        ".reg .pred scale_d;\\n"
        "setp.ne.b32 scale_d, %{count + 2}, 0;\\n"
        "{instruction} {{"
{registers}
        "}}, %{count}, %{count + 1}, scale_d, 1, 1, 0, {0 if b_k_major else 1};\\n"
        "}}\\n"
        : {operands}
        : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<uint32_t>(accumulate))
        : "memory");
}}

}}  // namespace ptx

// No instruction: keeps the compiler from moving a use of rC above this point, which stands after the wait_group.
DEVICE void keep_below(float (&rC)[{count}]) {{
    asm volatile(""
        : {operands}
        :
        : "memory");
}}
"""


@cache
def device_code() -> dict[str, str]:
    """Every file of kernels/cuda by its path from there: the text that a unit may include."""
    root = resources.files("tilewright.kernels") / "cuda"
    found: dict[str, str] = {}
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        for item in folder.iterdir():
            path = prefix + item.name
            if item.is_dir():
                folders.append((path + "/", item))
            elif item.name.endswith((".cu", ".cuh")):
                found[path] = item.read_text(encoding="utf-8")
    return found


def _closure(text: str, headers: Mapping[str, str]) -> set[str]:
    """Paths of the headers that the text includes, directly or through others."""
    used: set[str] = set()
    waiting = list(included(text))
    while waiting:
        path = waiting.pop()
        if path not in used:
            used.add(path)
            waiting += included(headers[path])
    return used


def _slug(problem: Problem, config: Config) -> str:
    """A name that a profiler or a cache listing can show, of what is compiled in: the order of tiles is not."""
    layout = "tn" if problem.b_major == "k" else "nn"
    return (
        f"{problem.dtype}_{problem.out_dtype}_{layout}_{config.tile_m}x{config.tile_n}x{config.tile_k}_s{config.stages}"
        f"_w{config.consumers}_c{config.cluster_m}x{config.cluster_n}_o{config.store_slots}"
        + "".join(f"_{word}" for word in ("pingpong", "halves", "k_back_and_forth") if getattr(config, word))
    )
