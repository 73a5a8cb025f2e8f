"""An entry is whole or absent, and a folder that is not ours alone is not used."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jit_units import HEADERS, UNIT, make_source

from tilewright.jit import build, cache, folders
from tilewright.jit.cache import Cache, CacheFolderWarning
from tilewright.jit.source import Binary, Resources, Source

KEY = "0123456789abcdef" * 2
BINARY = Binary(
    digest=KEY,
    name="scale",
    entry="scale",
    arch="sm_90a",
    compiler="nvrtc 13.0.1 CL-1",
    cubin=b"\x7fELF" + bytes(range(256)),
    ptx=".version 9.0\n",
    log="ptxas info    : Used 8 registers\n",
    resources=Resources(8, 0, 0, 0, 0, 0),
    warnings=("ptxas info : (C7511) x",),
    compile_seconds=0.25,
    from_cache=False,
)
FILES = ("entry.json", "kernel.cubin", "kernel.ptx", "log.txt")


@pytest.fixture
def store(cache_folder: Path) -> Cache:
    return Cache(cache_folder)


@pytest.fixture
def entry(store: Cache, source: Source, cache_folder: Path) -> Path:
    """The folder of one good entry."""
    assert store.store(KEY, BINARY, source, "s" * 32, "nvcc unit.cu")
    return cache_folder / KEY[:2] / KEY


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def _leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_is_stored_comes_back_equal_but_for_from_cache(store: Cache, entry: Path) -> None:
    found = store.lookup(KEY)
    assert found is not None
    assert found.from_cache
    assert {**vars(found), "from_cache": False} == vars(BINARY)


def test_an_entry_holds_what_people_and_nvcc_read(entry: Path) -> None:
    files = {str(path.relative_to(entry)) for path in entry.rglob("*") if path.is_file()}
    assert files == {*FILES, "unit.cu", "include/config.cuh", "include/ptx/part.cuh"}
    assert (entry / "unit.cu").read_text() == UNIT
    assert (entry / "include/ptx/part.cuh").read_text() == dict(HEADERS)["ptx/part.cuh"]
    record = json.loads((entry / "entry.json").read_text())["entry"]
    assert record["compiler"] == BINARY.compiler
    assert record["command"] == "nvcc unit.cu"
    assert set(record["files"]) == files - {"entry.json"}


def test_folders_get_mode_0700_and_files_0600_whatever_the_umask(
    store: Cache, source: Source, cache_folder: Path
) -> None:
    before = os.umask(0)
    try:
        assert store.store(KEY, BINARY, source, "s")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in [cache_folder, *cache_folder.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in cache_folder.rglob("*") if path.is_file()} == {0o600}
    assert store.lookup(KEY) is not None


def test_an_absent_key_or_folder_is_a_silent_miss(store: Cache, entry: Path, caught: list[Any], tmp_path: Path) -> None:
    assert store.lookup("f" * 32) is None
    assert store.lookup("../../etc") is None
    assert Cache(tmp_path / "nowhere").lookup(KEY) is None
    assert Cache(None).lookup(KEY) is None
    assert caught == []


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped": _flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "removed": lambda path: path.unlink(),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_a_silent_miss_and_goes_away(
    store: Cache, entry: Path, name: str, damage: str, caught: list[Any], source: Source
) -> None:
    DAMAGE[damage](entry / name)
    assert store.lookup(KEY) is None
    assert not entry.exists()
    assert _leftovers(entry.parents[1]) == []
    assert caught == []
    assert store.store(KEY, BINARY, source, "s")
    assert store.lookup(KEY) is not None


def test_a_changed_number_in_the_record_is_a_miss(store: Cache, entry: Path) -> None:
    record = entry / "entry.json"
    record.write_text(record.read_text().replace('"registers": 8', '"registers": 9'))
    assert store.lookup(KEY) is None


def test_an_entry_under_another_key_is_a_miss(store: Cache, entry: Path) -> None:
    other = "f" * 32
    (entry.parents[1] / "ff").mkdir(mode=0o700)
    entry.rename(entry.parents[1] / "ff" / other)
    assert store.lookup(other) is None


def test_a_file_in_the_place_of_an_entry_is_a_miss_and_is_replaced(
    store: Cache, source: Source, cache_folder: Path
) -> None:
    (cache_folder / KEY[:2]).mkdir(parents=True, mode=0o700)
    (cache_folder / KEY[:2] / KEY).write_text("x")
    assert store.lookup(KEY) is None
    assert store.store(KEY, BINARY, source, "s")


def test_a_damaged_entry_that_cannot_be_moved_is_still_a_miss(
    store: Cache, entry: Path, monkeypatch: pytest.MonkeyPatch, caught: list[Any]
) -> None:
    _flip(entry / "kernel.cubin")
    monkeypatch.setattr(Path, "rename", _raising(OSError(errno.EROFS, "Read-only file system")))
    assert store.lookup(KEY) is None
    assert caught == []


def test_an_entry_that_cannot_be_read_for_now_is_a_miss_and_stays(
    store: Cache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _raising(OSError(errno.ESTALE, "Stale file handle")))
        assert store.lookup(KEY) is None
    assert store.lookup(KEY) is not None


def _record_with(**changes: Any) -> Callable[[bytes], bytes]:
    """Writes a record with other values and the checksum that they need."""

    def rewritten(raw: bytes) -> bytes:
        record = {**json.loads(raw)["entry"], **changes}
        return json.dumps({"entry": record, "sha256": cache._sum_of(record)}).encode()

    return rewritten


STRANGE: dict[str, Callable[[bytes], bytes]] = {
    "nested past the interpreter's limit": lambda raw: b"[" * 100_000,
    "nested past it inside": lambda raw: b'{"entry":' * 5000 + b"1" + b"}" * 5000,
    "a list": lambda raw: b"[]",
    "null": lambda raw: b"null",
    "a number past all range": lambda raw: b"1e999999",
    "an entry that is a list": lambda raw: b'{"entry": [], "sha256": ""}',
    "no text": lambda raw: b"\xff\xfe",
    "thousands of digits": lambda raw: b"9" * 6000,
    "a name that is a list": _record_with(name=["scale"]),
    "a time that is a text": _record_with(created_seconds="yesterday"),
    "resources of another kind": _record_with(resources={"registers": "8"}),
    "resources in words": _record_with(resources={**vars(BINARY.resources), "registers": "8"}),
    "warnings that are numbers": _record_with(warnings=[7511]),
    "files that are a list": _record_with(files=[]),
}


@pytest.mark.parametrize("text", STRANGE)
def test_a_record_that_says_anything_else_is_a_silent_miss(
    store: Cache, source: Source, entry: Path, text: str, caught: list[Any]
) -> None:
    file = entry / "entry.json"
    file.write_bytes(STRANGE[text](file.read_bytes()))
    assert store.entries() == [] or text == "files that are a list"
    assert store.find_source("s" * 32) is None
    assert store.lookup(KEY) is None
    assert store.trim(max_bytes=0) in (0, 1)
    assert store.store(KEY, BINARY, source, "s" * 32), "the bad entry is in the way"
    assert store.lookup(KEY) is not None
    assert caught == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_a_miss_and_nobody_waits_for_it(store: Cache, entry: Path, name: str) -> None:
    (entry / name).unlink()
    os.mkfifo(entry / name, mode=0o600)
    assert store.lookup(KEY) is None


def test_parents_of_a_new_cache_folder_get_its_mode_whatever_the_umask(tmp_path: Path, source: Source) -> None:
    before = os.umask(0)
    try:
        assert Cache(tmp_path / "one" / "two" / "cache").store(KEY, BINARY, source, "s")
        assert Cache(tmp_path / "three" / "four" / "cache").write_note(b"[]")
    finally:
        os.umask(before)
    made = [tmp_path / path for path in ("one", "one/two", "three", "three/four")]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


def _raising(error: OSError) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def _refusing_new_files(error: OSError) -> Callable[..., int]:
    """os.open of a full disk: what is there can still be opened."""
    real = os.open

    def fail(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise error
        return real(path, flags, *rest, **named)

    return fail


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EEXIST])
def test_the_loser_of_a_rename_that_never_sees_the_winner_keeps_its_own_build_silently(
    source: Source, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caught: list[Any], number: int
) -> None:
    monkeypatch.setattr(Path, "rename", _raising(OSError(number, os.strerror(number))))
    binary = build.build(source)
    assert binary.cubin.startswith(b"\x7fELF")
    assert not binary.from_cache
    assert list(cache_folder.glob("*/*")) == []
    assert _leftovers(cache_folder) == []
    assert caught == []


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("os.open", errno.ENOSPC),
        ("os.open", errno.EDQUOT),
        ("os.fsync", errno.EIO),
        ("pathlib.Path.mkdir", errno.EROFS),
        ("pathlib.Path.mkdir", errno.EACCES),
        ("pathlib.Path.rename", errno.EBUSY),
    ],
)
def test_a_folder_that_cannot_be_written_warns_once_and_builds_stay_in_memory(
    place: str, number: int, source: Source, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caught: list[Any]
) -> None:
    with monkeypatch.context() as patch:
        error = OSError(number, os.strerror(number))
        patch.setattr(place, _refusing_new_files(error) if place == "os.open" else _raising(error))
        first = build.build(source)
        assert build.build(source) is first
        build.build(make_source(options=("-DOTHER",)))
    assert [warning.category for warning in caught] == [CacheFolderWarning]
    message = str(caught[0].message)
    assert os.strerror(number) in message
    assert str(cache_folder) in message
    assert "TILEWRIGHT_CACHE_DIR" in message
    assert not cache_folder.exists() or _leftovers(cache_folder) == []


def test_a_file_in_the_place_of_the_root_warns_once(source: Source, cache_folder: Path, caught: list[Any]) -> None:
    cache_folder.write_text("x")
    build.build(source)
    assert len(caught) == 1


def test_without_a_home_there_is_one_warning_and_a_build(
    source: Source, monkeypatch: pytest.MonkeyPatch, caught: list[Any]
) -> None:
    import platformdirs

    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/tilewright")
    build.build(source)
    build.build(make_source(options=("-DOTHER",)))
    assert len(caught) == 1
    assert "home" in str(caught[0].message)


@pytest.mark.skipif(os.geteuid() == 0, reason="rights do not stop root; the mocked cases do")
def test_a_root_of_mode_0555_serves_entries_and_takes_none(
    store: Cache, entry: Path, source: Source, caught: list[Any]
) -> None:
    root = entry.parents[1]
    root.chmod(0o555)
    try:
        assert store.lookup(KEY) is not None
        assert not store.store("f" * 32, BINARY, source, "s")
    finally:
        root.chmod(0o700)
    assert len(caught) == 1


@pytest.mark.parametrize("level", ["root", "shard", "entry", "kernel.cubin", "entry.json"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_not_used_and_warns_once(
    store: Cache, entry: Path, level: str, mode: int, caught: list[Any]
) -> None:
    places = {"root": entry.parents[1], "shard": entry.parent, "entry": entry}
    place = places.get(level, entry / level)
    place.chmod(place.stat().st_mode | mode)
    assert store.lookup(KEY) is None
    assert store.lookup(KEY) is None
    assert [warning.category for warning in caught] == [CacheFolderWarning]
    message = str(caught[0].message)
    assert "others can write" in message
    assert "TILEWRIGHT_CACHE_TRUST" in message
    assert entry.exists()
    assert Cache(store.root, trusted=True).lookup(KEY) is not None


def test_a_root_that_others_can_write_takes_no_entry_not_even_with_the_sticky_bit(
    source: Source, cache_folder: Path, caught: list[Any]
) -> None:
    cache_folder.mkdir()
    cache_folder.chmod(0o1777)
    build.build(source)
    assert list(cache_folder.iterdir()) == []
    assert len(caught) == 1


def test_the_trust_setting_uses_a_folder_that_others_can_write(
    source: Source, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caught: list[Any]
) -> None:
    cache_folder.mkdir()
    cache_folder.chmod(0o777)
    monkeypatch.setenv("TILEWRIGHT_CACHE_TRUST", "1")
    build.build(source)
    build.clear()
    assert build.build(source).from_cache
    assert caught == []


def test_a_folder_of_another_user_is_not_used_and_one_of_root_is(
    store: Cache, entry: Path, monkeypatch: pytest.MonkeyPatch, caught: list[Any]
) -> None:
    owner = entry.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert (store.lookup(KEY) is not None) is (owner == 0)
    assert len(caught) == (owner != 0)
    monkeypatch.undo()
    status = os.stat_result((0o100644, 0, 0, 1, 4242, 4242, 0, 0, 0, 0))
    assert "user 4242" in folders.distrust(status)


def test_a_store_replaces_only_when_asked(store: Cache, entry: Path, source: Source) -> None:
    newer = Binary(**{**vars(BINARY), "compiler": "nvrtc 13.9"})
    assert not store.store(KEY, newer, source, "s")
    assert store.lookup(KEY).compiler == BINARY.compiler  # type: ignore[union-attr]
    assert store.store(KEY, newer, source, "s", replace=True)
    assert store.lookup(KEY).compiler == "nvrtc 13.9"  # type: ignore[union-attr]
    assert _leftovers(entry.parents[1]) == []


def test_a_prebuilt_folder_is_never_written(entry: Path, source: Source) -> None:
    prebuilt = Cache(entry.parents[1], is_writable=False)
    assert not prebuilt.store("f" * 32, BINARY, source, "s")
    _flip(entry / "kernel.cubin")
    assert prebuilt.lookup(KEY) is None
    assert entry.exists()


def test_entries_total_and_clear_see_entries_and_nothing_else(
    store: Cache, entry: Path, source: Source, cache_folder: Path
) -> None:
    assert store.store("f" * 32, BINARY, source, "t" * 32)
    (cache_folder / "notes.txt").write_text("mine")
    (cache_folder / ".aside-1-dead").mkdir()
    outside = cache_folder.parent / ("e" * 32)
    outside.mkdir()
    (cache_folder / "ee").mkdir()
    (cache_folder / "ee" / ("e" * 32)).symlink_to(outside)
    entries = store.entries()
    assert [found.key for found in entries] == [KEY, "f" * 32]
    assert [found.source_digest for found in entries] == ["s" * 32, "t" * 32]
    assert entries[0].size_bytes == sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
    assert store.total_bytes() == sum(found.size_bytes for found in entries)
    assert store.clear() == 2
    assert outside.exists()
    assert sorted(path.name for path in cache_folder.iterdir()) == ["ee", "notes.txt"]
    assert Cache(cache_folder / "nowhere").clear() == 0


def test_trim_removes_the_oldest_until_it_fits(store: Cache, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:032x}" for number in range(4)]
    for age, key in enumerate(keys):
        monkeypatch.setattr(cache.time, "time", lambda age=age: 1000.0 + age)
        assert store.store(key, BINARY, source, "s")
    size = store.total_bytes() // 4
    assert store.trim(max_bytes=3 * size + size // 2) == 1
    assert [found.key for found in store.entries()] == keys[1:]
    assert store.trim(max_age_seconds=1.5) == 1
    assert [found.key for found in store.entries()] == keys[2:]
    assert store.trim() == 0


def test_the_newest_build_of_a_source_is_found_whatever_its_compiler(
    store: Cache, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, (key, compiler) in enumerate([("a" * 32, "old"), ("b" * 32, "new"), ("c" * 32, "other")]):
        monkeypatch.setattr(cache.time, "time", lambda age=age: 1000.0 + age)
        binary = Binary(**{**vars(BINARY), "compiler": compiler})
        assert store.store(key, binary, source, "other" if compiler == "other" else "same")
    assert store.find_source("same").compiler == "new"  # type: ignore[union-attr]
    assert store.find_source("none") is None


def test_sixteen_processes_that_start_at_once_on_an_empty_cache_all_succeed(
    source: Source, cache_folder: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    code = """
import sys, warnings
warnings.simplefilter("error")
from jit_units import make_source
from tilewright.jit import build
print("ready", flush=True)
sys.stdin.readline()
binary = build.build(make_source())
print(binary.digest, binary.cubin[:4] == b"\\x7fELF", len(binary.ptx), flush=True)
"""
    processes = [start_python(code, TILEWRIGHT_CACHE_DIR=str(cache_folder)) for _ in range(16)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 16, outputs
    assert len({out for out, _ in outputs}) == 1
    assert re.fullmatch(r"[0-9a-f]{32} True \d+\n", outputs[0][0])
    assert [found.key for found in Cache(cache_folder).entries()] == [build.digest_of(source)]
    assert Cache(cache_folder).lookup(build.digest_of(source)) is not None
    assert _leftovers(cache_folder) == []
