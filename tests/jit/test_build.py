"""Who compiles, how often, and from where a binary comes."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jit_units import HEADERS, make_source, numbered

from tilewright.errors import CacheError, CompileError, UnsupportedError
from tilewright.jit import build, nvrtc
from tilewright.jit.cache import Cache
from tilewright.jit.source import Binary, Source

WAIT_SECONDS = 30.0  # for events that come at once unless the test fails


class Compiler:
    """Stands for NVRTC: counts, and may wait inside a compile."""

    def __init__(self, inside: Callable[[Source], None] = lambda _: None) -> None:
        self.counts: Counter[str] = Counter()
        self.inside = inside
        self.real = nvrtc.compile_source

    def __call__(self, source: Source, digest: str) -> Binary:
        self.counts[digest] += 1
        self.inside(source)
        return self.real(source, digest)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler()
    monkeypatch.setattr(nvrtc, "compile_source", fake)
    return fake


def pretend_compiler(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Makes this process one that has asked its NVRTC and got this version."""
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: version)
    monkeypatch.setattr(nvrtc, "known_version", lambda: version)


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def remove() -> None:
        def missing() -> Any:
            raise UnsupportedError("compiling a kernel", "it needs NVRTC", "pip install it")

        build.clear()
        nvrtc.compiler_version.cache_clear()
        monkeypatch.setattr(nvrtc, "_nvrtc", missing)

    yield remove
    nvrtc.compiler_version.cache_clear()


def test_a_unit_comes_from_the_compiler_then_from_memory_then_from_disk(source: Source, compiler: Compiler) -> None:
    first = build.build(source)
    assert not first.from_cache
    assert build.build(source) is first
    build.clear()
    again = build.build(source)
    assert again.from_cache
    assert {**vars(again), "from_cache": False} == vars(first)
    assert compiler.counts.total() == 1


def test_a_stored_binary_has_the_digest_of_its_source(source: Source, cache_folder: Path) -> None:
    assert build.build(source).digest == build.digest_of(source)
    (entry,) = Cache(cache_folder).entries()
    assert (entry.key, entry.source_digest) == (build.digest_of(source), build.source_digest_of(source))


def test_a_damaged_entry_is_built_anew(source: Source, compiler: Compiler, cache_folder: Path) -> None:
    first = build.build(source)
    (entry,) = Cache(cache_folder).entries()
    (entry.folder / "kernel.cubin").write_bytes(b"\x7fELF")
    build.clear()
    assert build.build(source).cubin == first.cubin
    assert compiler.counts.total() == 2
    build.clear()
    assert build.build(source).from_cache


def test_a_new_header_compiler_flag_or_shared_option_is_a_new_key(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {build.digest_of(source)}
    keys.add(build.digest_of(make_source(headers=(HEADERS[0], ("ptx/part.cuh", HEADERS[1][1] + "//\n")))))
    keys.add(build.digest_of(make_source(options=("--fmad=false",))))
    with monkeypatch.context() as patch:
        pretend_compiler(patch, "nvrtc 13.9.99 CL-1")
        keys.add(build.digest_of(source))
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "COMMON_OPTIONS", ("-std=c++20",))
        keys.add(build.digest_of(source))
        keys.add(build.source_digest_of(source))
    keys.add(build.source_digest_of(source))
    assert len(keys) == 7


def test_the_source_digest_does_not_depend_on_the_compiler(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.source_digest_of(source)
    pretend_compiler(monkeypatch, "nvrtc 13.9.99 CL-1")
    assert build.source_digest_of(source) == before


def test_eight_threads_compile_each_of_five_units_once_and_all_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every compile waits for four others to be under way: with a global lock none would ever end.
    together = threading.Barrier(5, timeout=WAIT_SECONDS)
    compiler = Compiler(lambda _: together.wait() and None)
    monkeypatch.setattr(nvrtc, "compile_source", compiler)
    start = threading.Barrier(8, timeout=WAIT_SECONDS)

    def ask(number: int) -> Binary:
        start.wait()
        return build.build(numbered(number))

    numbers = [0, 0, 0, 0, 1, 2, 3, 4]
    with ThreadPoolExecutor(8) as pool:
        binaries = list(pool.map(ask, numbers))
    assert len(compiler.counts) == 5
    assert set(compiler.counts.values()) == {1}
    assert len({id(binary) for binary in binaries[:4]}) == 1
    assert len({binary.cubin for binary in binaries}) == 5


def test_threads_give_the_bytes_that_one_thread_gives(compiler: Compiler) -> None:
    sources = [numbered(number) for number in range(6)]
    alone = [nvrtc.compile_source(source, build.digest_of(source)) for source in sources]
    for one, other in zip(alone, build.build_many(sources, threads=4), strict=True):
        assert (one.cubin, one.ptx) == (other.cubin, other.ptx)


def test_a_failed_compile_reaches_every_waiting_thread_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    compiler = Compiler(lambda _: waiting.wait(WAIT_SECONDS) and None)
    monkeypatch.setattr(nvrtc, "compile_source", compiler)
    bad = make_source(text="nonsense")
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(build.build, bad) for _ in range(4)]
        waiting.set()
        assert all(isinstance(job.exception(WAIT_SECONDS), CompileError) for job in jobs)
    before = compiler.counts.total()
    with pytest.raises(CompileError):
        build.build(bad)
    assert compiler.counts.total() == before + 1


def test_an_interrupted_leader_leaves_the_work_to_a_waiting_thread(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, may_end = threading.Event(), threading.Event()

    def interrupted_once(_: Source) -> None:
        if not led.is_set():
            led.set()
            may_end.wait(WAIT_SECONDS)
            raise KeyboardInterrupt

    monkeypatch.setattr(nvrtc, "compile_source", Compiler(interrupted_once))
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(build.build, source)
        assert led.wait(WAIT_SECONDS)
        waiter = pool.submit(build.build, source)
        may_end.set()
        assert isinstance(leader.exception(WAIT_SECONDS), KeyboardInterrupt)
        assert waiter.result(WAIT_SECONDS).name == "scale"


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # 3.12: fork in a process with threads, which is the case here
def test_a_forked_child_does_not_wait_for_a_build_of_its_parent(source: Source, cache_folder: Path) -> None:
    build.build(source)
    build.clear()
    key = build.digest_of(source)
    build._memory.flights[key] = build.Future()  # led by a thread that the child does not have
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(int(WAIT_SECONDS))  # a child that waits for ever must not outlive the test
            os._exit(0 if build.build(source).from_cache else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        build._memory.flights.clear()


def test_memory_drops_the_least_recently_used_beyond_its_bytes(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = build.build(numbered(0))
    monkeypatch.setattr(build, "MEMORY_BYTES", 5 * build._size_bytes(one) // 2)
    second = build.build(numbered(1))
    assert build.build(numbered(0)) is one
    build.build(numbered(2))
    assert build.build(numbered(0)) is one
    assert build.build(numbered(1)) is not second
    assert build._memory.held_bytes == sum(map(build._size_bytes, build._memory.binaries.values()))


def test_build_many_keeps_the_order_and_reports_each_unit_to_the_callers_thread(compiler: Compiler) -> None:
    sources = [numbered(number) for number in (3, 1, 2, 1)]
    seen: list[tuple[int, int, int]] = []
    binaries = build.build_many(sources, threads=2, progress=lambda d, n, _: seen.append((d, n, threading.get_ident())))
    assert [binary.digest for binary in binaries] == [build.digest_of(source) for source in sources]
    assert seen == [(done, 4, threading.get_ident()) for done in (1, 2, 3, 4)]
    assert compiler.counts.total() == 3
    assert build.build_many([]) == []


def test_build_many_raises_the_first_failure_and_leaves_the_rest_undone(compiler: Compiler) -> None:
    with pytest.raises(CompileError):
        build.build_many([make_source(text="nonsense"), *map(numbered, range(20))], threads=1)
    assert compiler.counts.total() < 20


def test_the_thread_count_comes_from_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_COMPILE_THREADS", "three")
    with pytest.raises(UnsupportedError, match="TILEWRIGHT_COMPILE_THREADS=three"):
        build.build_many([make_source()])


# Volatile: ptxas keeps even an array indexed at run time in registers where it can.
LOOSE_STACK = """\
extern "C" __global__ void scale(float* p, int i) {
  volatile float a[64];
  for (int j = 0; j < 64; ++j) a[j] = p[j];
  p[0] = a[i];
}
"""


def test_refuse_fails_on_stack_use_with_log_and_command_also_from_memory_and_disk(compiler: Compiler) -> None:
    source = make_source(text=LOOSE_STACK, headers=())
    assert build.flaws(build.build(source)) == ("it uses 256 bytes of stack a thread",)
    for forget in (lambda: None, build.clear):
        forget()
        with pytest.raises(CompileError, match="256 bytes of stack") as caught:
            build.build(source, refuse=True)
        assert "ptxas" in caught.value.log
        assert caught.value.command.startswith("nvcc ")
    assert compiler.counts.total() == 1


def test_refuse_fails_on_an_ignored_setmaxnreg() -> None:
    ignored = 'extern "C" __global__ void scale() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }'
    with pytest.raises(CompileError, match="C7508"):
        build.build(make_source(text=ignored, headers=()), refuse=True)


def test_flaws_name_spills_and_every_warning(source: Source) -> None:
    good = build.build(source, refuse=True)
    assert build.flaws(good) == ()
    spilled = type(good.resources)(168, 8, 12, 0, 0, 1)
    bad = Binary(**{**vars(good), "resources": spilled, "warnings": ("(C7511) x", "(C7517) y")})
    assert build.flaws(bad) == (
        "registers spill (8 bytes stored, 12 bytes loaded a thread)",
        "(C7511) x",
        "(C7517) y",
    )


def test_a_prebuilt_folder_serves_a_machine_without_nvrtc(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_nvrtc: Callable[[], None]
) -> None:
    folder = tmp_path / "prebuilt"
    (made,) = build.build_into([source], folder)
    assert folder.stat().st_mode & 0o022 == 0
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "fresh"))
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", os.pathsep.join((str(tmp_path / "nowhere"), str(folder))))
    without_nvrtc()
    found = build.build(source)
    assert found.from_cache
    assert (found.cubin, found.digest, found.compiler) == (made.cubin, made.digest, made.compiler)
    assert not (tmp_path / "fresh").exists()
    with pytest.raises(UnsupportedError, match="it needs NVRTC"):
        build.build(numbered(7))


def test_the_users_cache_serves_a_machine_whose_nvrtc_went_away(
    source: Source, without_nvrtc: Callable[[], None]
) -> None:
    made = build.build(source)
    without_nvrtc()
    assert build.build(source).cubin == made.cubin


def test_a_prebuilt_folder_serves_a_machine_with_another_nvrtc(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    (made,) = build.build_into([source], tmp_path / "prebuilt")
    build.clear()
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", str(tmp_path / "prebuilt"))
    pretend_compiler(monkeypatch, "nvrtc 13.9.99 CL-1")
    assert build.build(source).compiler == made.compiler
    assert compiler.counts.total() == 1
    build.build(make_source(options=("-DNEW",)))
    assert compiler.counts.total() == 2


def test_another_nvrtc_does_not_take_what_the_users_cache_has_of_the_old(
    source: Source, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    build.build(source)
    build.clear()
    pretend_compiler(monkeypatch, "nvrtc 13.9.99 CL-1")
    assert not build.build(source).from_cache


def test_a_prebuilt_folder_that_others_can_write_is_not_used(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    folder = tmp_path / "prebuilt"
    build.build_into([source], folder)
    folder.chmod(0o777)
    build.clear()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "fresh"))
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", str(folder))
    with pytest.warns(UserWarning, match="others can write it"):
        assert not build.build(source).from_cache


def test_building_into_a_folder_again_replaces_its_entries(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "prebuilt"
    build.build_into([source], folder)
    pretend_compiler(monkeypatch, "nvrtc 13.9.99 CL-1")
    build.build_into([source], folder)
    assert [entry.compiler for entry in Cache(folder).entries()] == ["nvrtc 13.9.99 CL-1"]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_compiled(
    source: Source, compiler: Compiler, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "cubins"):
        with pytest.raises(CacheError, match=r"it cannot be written \(.*choose a folder that you can write"):
            build.build_into([source], folder)
    assert not compiler.counts


def test_an_entry_that_cannot_be_written_after_all_is_a_cache_error(source: Source, tmp_path: Path) -> None:
    (tmp_path / build.source_digest_of(source)[:2]).touch()  # a file in the place of the entries' folder
    with (
        pytest.warns(UserWarning, match="while writing"),
        pytest.raises(CacheError, match="scale could not be written"),
    ):
        build.build_into([source], tmp_path)
