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
from tilewright.dtypes import DType, sums_of
from tilewright.epilogue_form import Form
from tilewright.jit.source import Source, included
from tilewright.kernels.family import Family
from tilewright.problem import Problem


def render(family: Family, problem: Problem, config: Config, device: Device, wait_limit: int = 0) -> Source:
    """The whole unit of one kernel.

    `wait_limit` bounds every wait for a barrier in a debug build: after so many tries the grid traps; 0 waits forever.
    """
    problem = config.sliced(problem.row_major)  # what a kernel computes
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


def constants_header(constants: Mapping[str, int | bool | str], further: tuple[str, ...] = ()) -> str:
    """config.cuh: every constant of a kernel by name, int, bool or a word of an enumeration; `further`: the files with
    enumerations that base.cuh does not have."""
    lines = [
        "// Rendered for one kernel by kernels/render.py. The copy in the source tree is the default, for editors.",
        "#pragma once",
        "",
        '#include "base.cuh"',
        *(f'#include "{path}"' for path in further),
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


def wgmma_header(n: int, dtype: DType, *, a_k_major: bool, b_k_major: bool, tail_n: int = 0) -> str:
    """wgmma_mma_async.cuh: the wgmmas of a kernel, m64 n k16, fp32 accumulators, both operands in smem.

    `tail_n`: a second one of this width, whose accumulators are the first of the same array.
    """
    widths = (n, tail_n) if tail_n else (n,)
    transposes = f"{int(not a_k_major)}, {int(not b_k_major)}"
    wrappers = "\n".join(_wgmma_wrapper(width, n, dtype, transposes) for width in widths)
    return f"""\
// Rendered for one shape and type by kernels/render.py. The copy in the source tree is the default, for editors.
#pragma once

#include "base.cuh"

namespace ptx {{

// The one of width N, {" or ".join(map(str, widths))}; the first if none is named.
template <int N = {n}>
DEVICE void wgmma_mma_async(float (&rC)[{n // 2}], uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate);
template <int N = {n}>
DEVICE void wgmma_mma_async_first(float (&rC)[{n // 2}], uint64_t a_descriptor, uint64_t b_descriptor);

{wrappers}
}}  // namespace ptx

// No instruction: keeps the compiler from moving a use of rC above this point, which stands after the wait_group.
DEVICE void keep_below(float (&rC)[{n // 2}]) {{
    asm volatile(""
        : {_operands(n // 2, "+f")}
        :
        : "memory");
}}
"""


def _rows(count: int, length: int) -> list[range]:
    return [range(first, min(first + length, count)) for first in range(0, count, length)]


def _operands(count: int, constraint: str) -> str:
    """Accumulators 0 .. count-1 as operands of an asm statement, a line for the four of each 8 columns."""
    return ",\n          ".join(", ".join(f'"{constraint}"(rC[{i}])' for i in row) for row in _rows(count, 4))


def _wgmma_wrapper(n: int, array_n: int, dtype: DType, transposes: str) -> str:
    """The wrapper of one width, on the first n / 2 of the array_n / 2 accumulators of a thread.

    Source: PTX ISA, wgmma.mma_async: n / 2 accumulators a thread, descriptors of a and b, scale-d, the signs of a and
    b, and whether each is transposed (m or n contiguous).
    """
    count = n // 2
    registers = "\n".join(
        f'        "{", ".join(f"%{i}" for i in row)}{", " if row[-1] < count - 1 else ""}"' for row in _rows(count, 8)
    )
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype.ptx}.{dtype.ptx}"
    array = f"float (&rC)[{array_n // 2}]"
    return f"""\
// PTX ISA, wgmma.mma_async: a warpgroup. rC (64, {n}) = a (64, 16) x b (16, {n}), plus rC where `accumulate`.
// Reads shared memory through the async proxy; rC may not be touched before a wait_group covers it.
template <>
DEVICE void wgmma_mma_async<{n}>({array}, uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate) {{
    asm volatile(
        "{{\\n"
        ".reg .pred scale_d;\\n"
        "setp.ne.b32 scale_d, %{count + 2}, 0;\\n"
        "{instruction} {{"
{registers}
        "}}, %{count}, %{count + 1}, scale_d, 1, 1, {transposes};\\n"
        "}}\\n"
        : {_operands(count, "+f")}
        : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<uint32_t>(accumulate))
        : "memory");
}}

// The same with nothing to add to: what rC held before is not read.
template <>
DEVICE void wgmma_mma_async_first<{n}>({array}, uint64_t a_descriptor, uint64_t b_descriptor) {{
    asm volatile(
        "{{\\n"
        ".reg .pred scale_d;\\n"
        "setp.ne.b32 scale_d, 0, 0;\\n"
        "{instruction} {{"
{registers}
        "}}, %{count}, %{count + 1}, scale_d, 1, 1, {transposes};\\n"
        "}}\\n"
        : {_operands(count, "=f")}
        : "l"(a_descriptor), "l"(b_descriptor)
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
    batch = f"batch{len(problem.batch)}_" if problem.batch else ""
    sums = f"{problem.sums}_sums_" if problem.sums is not sums_of(problem.dtype) else ""
    return (
        f"{problem.dtype}_{problem.out_dtype}_{problem.layout.lower()}_{sums}{batch}{config.tile_m}x{config.tile_n}x{config.tile_k}_s{config.stages}"
        f"_w{config.consumers}_c{config.cluster_m}x{config.cluster_n}_o{config.store_slots}"
        + (f"_tail{config.tail_n}" if config.tail_n else "")
        + (f"_split{config.split_k}" if config.split_k > 1 else "")
        + "".join(
            f"_{word}"
            for word in ("pingpong", "staggered", "k_back_and_forth", "swap", "dependent_launch", "dependent_sums")
            if getattr(config, word)
        )
        + ("" if problem.epilogue is None else f"_{_word_of(problem.epilogue)}")
    )


def _word_of(form: Form) -> str:
    """An epilogue's steps as a part of a name: their kinds, and at most 40 letters."""
    return "_".join(step.kind for step in form.steps)[:40]
