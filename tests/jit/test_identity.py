"""The note of compilers: a hit loads no NVRTC, and a note that is missing or wrong only costs time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jit_units import make_source

from tilewright.errors import UnsupportedError
from tilewright.jit import build, cache, identity, nvrtc
from tilewright.jit.cache import NOTE, Cache

WRONG = "nvrtc 13.0.1 CL-0"

FROM_CACHE = """
import sys
from jit_units import make_source
from tilewright.jit import build
binary = build.build(make_source())
loaded = [name for name in sys.modules if name.split(".")[0] == "cuda"]
print(binary.from_cache, loaded, "libnvrtc" in open("/proc/self/maps").read(), binary.digest)
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes this process one that has not asked NVRTC yet."""

    def forget() -> None:
        build.clear()
        nvrtc.compiler_version.cache_clear()

    forget()
    yield forget
    monkeypatch.undo()
    forget()


def note_of(folder: Path) -> list[Any]:
    return json.loads((folder / NOTE).read_bytes())


def with_version(folder: Path, version: str) -> None:
    (folder / NOTE).write_text(json.dumps([[*line[:3], version] for line in note_of(folder)]))


def test_a_hit_in_a_new_process_loads_neither_the_bindings_nor_the_library(
    cache_folder: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    first = build.build(make_source())
    out, err = start_python(FROM_CACHE, TILEWRIGHT_CACHE_DIR=str(cache_folder)).communicate(timeout=60)
    assert (out.strip(), err) == (f"True [] False {first.digest}", "")


def test_the_note_tells_the_loaded_library_by_path_size_and_time_of_change(cache_folder: Path, fresh: Any) -> None:
    build.build(make_source())
    [[path, size, changed, version]] = note_of(cache_folder)
    status = Path(path).stat()
    assert (size, changed, version) == (status.st_size, status.st_mtime_ns, nvrtc.compiler_version())
    assert Path(path).name.startswith("libnvrtc.so.13")


def test_the_file_found_without_loading_is_the_one_that_is_loaded(fresh: Callable[[], None]) -> None:
    found = identity.stamp_of(identity.library_file())
    nvrtc.compiler_version()
    assert identity.stamp_of(identity._loaded_file()) == found


def test_a_wrong_note_neither_hides_what_is_there_nor_names_what_is_built(
    cache_folder: Path, fresh: Callable[[], None]
) -> None:
    first = build.build(make_source())
    with_version(cache_folder, WRONG)
    fresh()
    again = build.build(make_source())
    assert (again.digest, again.from_cache) == (first.digest, True)
    assert [line[3] for line in note_of(cache_folder)] == [nvrtc.compiler_version()]
    with_version(cache_folder, WRONG)
    fresh()
    other = make_source(options=("-DOTHER=1",))
    built = build.build(other)
    assert not built.from_cache
    assert built.digest == other.digest(nvrtc.fingerprint(nvrtc.compiler_version()))
    assert {entry.key for entry in Cache(cache_folder).entries()} == {first.digest, built.digest}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "7", '[["path", 1]]', '[[1, "x", 2, 3]]', "\ud800", '[["p", 1e999, 1, "v"]]', "[" * 100_000],
    ids=lambda text: repr(text[:30]),
)
def test_a_damaged_note_is_replaced(cache_folder: Path, fresh: Callable[[], None], text: str) -> None:
    first = build.build(make_source())
    good = note_of(cache_folder)
    (cache_folder / NOTE).write_bytes(text.encode(errors="surrogatepass"))
    fresh()
    assert build.build(make_source()).digest == first.digest
    assert note_of(cache_folder) == good


def test_a_library_that_changed_is_asked_again(
    cache_folder: Path, fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / identity.SONAME
    library.write_bytes(b"one")
    monkeypatch.setattr(identity, "library_file", lambda: library)
    monkeypatch.setattr(identity, "_loaded_file", lambda: library)
    builds = {3: "nvrtc 13.1.0 CL-1", 5: "nvrtc 13.2.0 CL-2"}
    asked = []

    def ask() -> str:
        asked.append(library.stat().st_size)
        return builds[asked[-1]]

    monkeypatch.setattr(nvrtc, "compiler_version", ask)
    monkeypatch.setattr(nvrtc, "known_version", lambda: None)  # every call is a new process
    store = Cache(cache_folder)
    for _ in range(2):
        identity.forget()
        assert identity.compiler_version(store) == builds[3]
    library.write_bytes(b"other")
    for _ in range(2):
        identity.forget()
        assert identity.compiler_version(store) == builds[5]
    assert asked == [3, 5]
    assert len(note_of(cache_folder)) == 1


def test_a_note_remembers_a_bounded_number_of_libraries(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Cache(cache_folder)
    for index in range(identity.MAX_NOTED + 3):
        library = tmp_path / f"{index}.so"
        library.touch()
        monkeypatch.setattr(identity, "_loaded_file", lambda library=library: library)
        identity._note(store, f"nvrtc {index}")
    versions = [line[3] for line in note_of(cache_folder)]
    assert versions == [f"nvrtc {index}" for index in range(3, identity.MAX_NOTED + 3)]


@pytest.mark.parametrize("place", ["root", "note"])
def test_a_note_that_others_can_write_is_not_believed(
    cache_folder: Path, fresh: Callable[[], None], place: str
) -> None:
    build.build(make_source())
    with_version(cache_folder, WRONG)
    (cache_folder if place == "root" else cache_folder / NOTE).chmod(0o777)
    fresh()
    with pytest.warns(cache.CacheFolderWarning, match="others can write it"):
        assert identity.compiler_version(cache.user_cache()) == nvrtc.compiler_version()


def test_a_folder_that_takes_no_note_is_asked_for_none(
    tmp_path: Path, fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for root in (None, tmp_path / "file"):
        fresh()
        assert identity.compiler_version(Cache(root)).startswith("nvrtc ")
    read_only = tmp_path / "prebuilt"
    fresh()
    identity.compiler_version(Cache(read_only, is_writable=False))
    assert not read_only.exists()


def test_the_note_goes_with_the_entries(cache_folder: Path, fresh: Callable[[], None]) -> None:
    build.build(make_source())
    Cache(cache_folder).clear()
    assert list(cache_folder.iterdir()) == []


def test_an_unknown_library_is_loaded_and_asked(
    cache_folder: Path, fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "library_file", lambda: None)
    assert identity.compiler_version(Cache(cache_folder)) == nvrtc.compiler_version()


def test_without_nvrtc_the_note_still_serves_what_is_cached_and_the_rest_is_refused(
    cache_folder: Path, fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.build(make_source())

    def missing() -> Any:
        raise UnsupportedError("compiling a kernel", "it needs NVRTC", "pip install it")

    fresh()
    monkeypatch.setattr(nvrtc, "_nvrtc", missing)
    assert build.build(make_source()).digest == first.digest
    with pytest.raises(UnsupportedError, match="it needs NVRTC"):
        build.build(make_source(options=("-DOTHER=1",)))


def test_a_mapped_library_is_found_with_spaces_in_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 fe:01 12   /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 fe:01 13   /opt/my env/lib/libnvrtc.so.13\n"
    )
    monkeypatch.setattr(identity, "_MAPS", maps)
    assert identity.library_file() == Path("/opt/my env/lib/libnvrtc.so.13")
