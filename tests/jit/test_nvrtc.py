"""One compile, two outputs, the report of ptxas; on a machine with nothing but the wheels."""

from __future__ import annotations

import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jit_units import HEADERS, make_source

from tilewright.errors import CompileError, UnsupportedError
from tilewright.jit import nvrtc
from tilewright.jit.source import Resources, Source

LOG = """\
unit.cu(3): warning #177-D: variable "wgmma" was declared but never referenced
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to X in line 9
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kern' for 'sm_90a'
ptxas info    : Function properties for kern
ptxas         .     96 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 5 barriers, 352 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 60.264 ms
ptxas info    : Function properties for _Z1gPii
ptxas         .     256 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""

# Registers for 100 live values are asked to fit into 24.
SPILLING = """\
extern "C" __global__ void __maxnreg__(24) scale(float* p, int n) {
  float a[100];
  #pragma unroll
  for (int j = 0; j < 100; ++j) a[j] = p[j * n];
  __syncthreads();
  #pragma unroll
  for (int j = 0; j < 100; ++j) p[j * n + 1] = a[(j + 50) % 100] * a[j];
}
"""


def test_one_compile_gives_a_cubin_that_is_elf_and_ptx_that_is_text(source: Source) -> None:
    binary = nvrtc.compile_source(source, "d")
    assert binary.cubin.startswith(b"\x7fELF")
    assert ".target sm_90a" in binary.ptx
    assert ".entry scale(" in binary.ptx
    assert "\0" not in binary.ptx
    assert (binary.digest, binary.name, binary.entry, binary.arch) == ("d", "scale", "scale", "sm_90a")
    assert binary.resources.registers > 0
    assert binary.warnings == ()
    assert not binary.from_cache


def test_the_ptx_has_line_numbers_in_the_unit_and_in_its_headers(source: Source) -> None:
    ptx = nvrtc.compile_source(source, "").ptx
    assert '"/tilewright/unit.cu"' in ptx
    assert '"/tilewright/include/ptx/part.cuh"' in ptx
    part = next(line.split()[1] for line in ptx.splitlines() if "part.cuh" in line)  # .file N "..."
    assert f".loc\t{part} 3 " in ptx  # the asm in the third line of part.cuh


def test_the_bytes_do_not_depend_on_the_working_directory(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = nvrtc.compile_source(source, "")
    monkeypatch.chdir(tmp_path)
    there = nvrtc.compile_source(source, "")
    assert (here.cubin, here.ptx) == (there.cubin, there.ptx)


def test_a_header_on_disk_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.cuh").write_text("#define FACTOR 3.0f\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"headers that the Source does not hold: config\.cuh"):
        nvrtc.compile_source(make_source(headers=()), "")
    angled = make_source(
        text="#include <config.cuh>\n" + make_source().text.replace('#include "config.cuh"', ""), headers=()
    )
    with pytest.raises(CompileError, match="NVRTC_ERROR_COMPILATION"):
        nvrtc.compile_source(angled, "")


def test_a_compile_error_holds_the_log_with_file_and_line_and_a_command_to_type() -> None:
    bad = make_source(headers=(HEADERS[0], ("ptx/part.cuh", "\nfloat scaled(;\n")), options=("-DSPACED=a b",))
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_source(bad, "")
    error = caught.value
    assert error.source == "scale"
    assert "ptx/part.cuh(2): error" in error.log
    assert error.command.startswith("nvcc --cubin --gpu-architecture=sm_90a -std=c++17 ")
    assert error.command.endswith("'-DSPACED=a b' -Iinclude unit.cu")
    assert error.log.strip() in str(error)


def test_a_unit_with_two_entries_or_another_entry_is_refused() -> None:
    second = make_source().text + 'extern "C" __global__ void second(float* p) { *p = 1.0f; }\n'
    with pytest.raises(CompileError, match=r"found: (scale, second|second, scale)"):
        nvrtc.compile_source(make_source(text=second), "")
    with pytest.raises(CompileError, match="here other; found: scale"):
        nvrtc.compile_source(make_source(entry="other"), "")


def test_a_ptx_target_is_refused_with_the_compilers_and_the_drivers_versions() -> None:
    with pytest.raises(UnsupportedError) as caught:
        nvrtc.compile_source(make_source(arch="compute_90a"), "")
    message = str(caught.value)
    release = nvrtc.compiler_version().split()[1]
    assert f"nvrtc {release}" in message
    assert f"drivers of CUDA {'.'.join(release.split('.')[:2])} or newer" in message
    assert "'sm_90a'" in message


def test_a_target_that_this_nvrtc_does_not_know_is_refused_with_the_list() -> None:
    with pytest.raises(UnsupportedError, match=r"sm_999.*nvrtc .* does not make code for it.*sm_90"):
        nvrtc.compile_source(make_source(arch="sm_999"), "")


def test_the_compiler_version_names_the_build_not_just_the_release() -> None:
    kind, number, build_id = nvrtc.compiler_version().split()
    assert kind == "nvrtc"
    assert len(number.split(".")) == 3
    assert build_id.startswith("CL-")


def test_resources_add_spills_and_take_the_largest_stack() -> None:
    assert nvrtc.parse_resources(LOG) == Resources(
        registers=168, spill_store_bytes=12, spill_load_bytes=16, stack_bytes=352, smem_bytes=1024, barriers=5
    )
    assert nvrtc.parse_resources("") == Resources(0, 0, 0, 0, 0, 0)


def test_warnings_are_the_lines_of_ptxas_about_wgmma_and_setmaxnreg_only() -> None:
    warnings = nvrtc.parse_warnings(LOG)
    assert [line.split("(")[1][:5] for line in warnings] == ["C7508", "C7511"]


def test_a_real_spill_and_a_real_ignored_setmaxnreg_are_seen() -> None:
    spilled = nvrtc.compile_source(make_source(text=SPILLING, headers=()), "").resources
    assert spilled.registers == 24
    assert min(spilled.spill_store_bytes, spilled.spill_load_bytes, spilled.stack_bytes) > 0
    ignored = 'extern "C" __global__ void scale() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }'
    assert "C7508" in nvrtc.compile_source(make_source(text=ignored, headers=()), "").warnings[0]


def _fake_bindings(monkeypatch: pytest.MonkeyPatch, version: Callable[[], Any]) -> None:
    import cuda.bindings

    nvrtc.compiler_version.cache_clear()
    monkeypatch.setattr(cuda.bindings, "nvrtc", types.SimpleNamespace(nvrtcVersion=version), raising=False)


def test_an_old_nvrtc_is_refused_with_both_versions_and_what_to_install(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_bindings(monkeypatch, lambda: (0, 12, 8))
    with pytest.raises(
        UnsupportedError, match=r"NVRTC 13\.0 or newer, found 12\.8; pip install .*nvidia-cuda-nvrtc>=13"
    ):
        nvrtc.compile_source(source, "")


def test_a_missing_library_is_refused_with_its_reason_and_what_to_install(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version() -> Any:
        raise RuntimeError('Failure finding "libnvrtc.so"\nmore')

    _fake_bindings(monkeypatch, version)
    with pytest.raises(UnsupportedError, match=r'none found \(Failure finding "libnvrtc.so"\); pip install'):
        nvrtc.compile_source(source, "")


def test_it_compiles_with_an_empty_path_no_home_and_no_cuda_home(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    code = """
import sys
import tilewright.jit.build
assert not [name for name in sys.modules if name.split(".")[0] == "cuda"], "importing loaded CUDA"
from jit_units import make_source
binary = tilewright.jit.build.build(make_source())
maps = open("/proc/self/maps").read()
assert "libnvrtc.so" in maps and "libcuda.so" not in maps
print(len(binary.cubin), len(binary.ptx))
"""
    process = start_python(code, PATH="", TILEWRIGHT_CACHE_DIR=str(tmp_path / "c"))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert all(int(size) > 500 for size in out.split())
