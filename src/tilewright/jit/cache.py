"""Compiled units on disk, in content-addressed folders that people and tools can read.

    <root>/<key[:2]>/<key>/   kernel.cubin  kernel.ptx  log.txt  unit.cu  include/...  entry.json
    <root>/compilers.json     a note that saves time, see identity.py

Knows files, checksums and who may write where. Knows nothing of NVRTC, and never how a key is made.

There are no locks. An entry is written aside, flushed and renamed into place, so it is whole or absent; two processes
that build the same unit do the work twice, and the second keeps its own build. Whatever is wrong with an entry or a
folder, a lookup is a miss and a store does nothing; a folder that cannot be used warns once a process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright import settings
from tilewright.errors import CacheError
from tilewright.jit import folders
from tilewright.jit.source import SCHEMA, Binary, Resources, Source

CUBIN, PTX, LOG, UNIT, INCLUDE, RECORD = "kernel.cubin", "kernel.ptx", "log.txt", "unit.cu", "include", "entry.json"
NOTE = "compilers.json"  # beside the entries; what it says, identity.py knows

# What a record's values are, beside its checksums. The sum tells damage; another program's record has a right one too.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "digest": str,
    "source_digest": str,
    "name": str,
    "entry": str,
    "arch": str,
    "compiler": str,
    "resources": dict,
    "warnings": list,
    "compile_seconds": (int, float),
    "created_seconds": (int, float),
}

_KEY = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_LEFTOVER = re.compile(r"\.(aside|bad)-.*")
LEFTOVER_SECONDS = 3600.0  # a write takes well under a second: an aside folder this old is of a process that died

_warned: dict[tuple[Path | None, str], object] = {}


class CacheFolderWarning(UserWarning):
    """A cache folder that this process does not use, or does not write."""


class _BadEntryError(Exception):
    """An entry whose bytes are not what was stored."""


@contextlib.contextmanager
def _bad_entry(name: str) -> Iterator[None]:
    """Makes whatever goes wrong in reading a text a bad entry: deep nesting, numbers past all range, other types."""
    try:
        yield
    except _BadEntryError:
        raise
    except Exception as error:
        raise _BadEntryError(name) from error


@dataclass(frozen=True)
class Entry:
    """What a listing says of one entry. Units: bytes on disk; seconds since 1970."""

    key: str
    digest: str
    source_digest: str
    name: str
    arch: str
    compiler: str
    size_bytes: int
    created_seconds: float
    folder: Path


@dataclass(frozen=True)
class Cache:
    """One folder of entries. `root` None is a machine without a home: every lookup misses.

    `trusted`: use the folder although others can write it; a cubin is code that runs with this user's rights on the
    GPU. `folder_mode` is what new folders get, less the umask; files get the same without the x bits.
    """

    root: Path | None
    trusted: bool = False
    is_writable: bool = True
    folder_mode: int = 0o700

    def lookup(self, key: str) -> Binary | None:
        """The unit of this key, or None: absent, damaged, unreadable or not trusted.

        A damaged entry is moved away where that is allowed.
        Cost: reads four files; checks owners, modes and SHA-256 sums. Measured, 0.12 MB, files in the page cache,
        2026-11-30: 0.4 ms.
        """
        if self.root is None or not _KEY.fullmatch(key) or not self._is_trusted(self.root):
            return None
        folder = self._folder(key)
        try:
            folder.lstat()
            if not self._is_trusted(folder.parent) or not self._is_trusted(folder):
                return None
            return self._read(folder, key)
        except _BadEntryError:
            self._discard(folder)
        except OSError:
            pass  # absent, or unreadable for now (rights, NFS): another reader may still be served by it
        return None

    def find_source(self, source_digest: str) -> Binary | None:
        """The newest unit of this source, whichever compiler made it. Cost: reads the record of every entry."""
        matches = [entry for entry in self.entries() if entry.source_digest == source_digest]
        for entry in sorted(matches, key=lambda entry: entry.created_seconds, reverse=True):
            if (binary := self.lookup(entry.key)) is not None:
                return binary
        return None

    def store(
        self, key: str, binary: Binary, source: Source, source_digest: str, command: str = "", replace: bool = False
    ) -> bool:
        """True when this build is now the entry of `key`; False when another is, or the folder cannot take it.

        `replace` puts it in the place of an entry that is there already. `command` is for people who read the entry.
        Cost: writes and flushes about six files, about 0.2 MB.
        """
        if not self.is_writable:
            return False
        aside: Path | None = None
        try:
            if self.root is None:
                raise OSError(errno.ENOENT, "there is no home folder")
            self._make_root(self.root)
            if not self._is_trusted(self.root):
                return False
            aside = self.root / f".aside-{os.getpid()}-{secrets.token_hex(8)}"
            self._write(aside, key, binary, source, source_digest, command)
            folder = self._folder(key)
            folder.parent.mkdir(mode=self.folder_mode, exist_ok=True)
            if replace and folder.exists():
                self._discard(folder)
            return folders.publish(aside, folder)
        except OSError as error:
            reason = f"{error.strerror or type(error).__name__} while writing"
            works = (
                "kernels of this process stay in memory; "
                f"let {settings.CACHE_DIR.name} name a folder with room and rights"
            )
            self._warn(self.root, "write", reason, works)
            return False
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)  # gone already when it was published

    def read_note(self) -> bytes | None:
        """What write_note() left, or None. Nobody checked it: a note is no entry."""
        if self.root is None or not self._is_trusted(self.root):
            return None
        try:
            return self._read_file(self.root / NOTE)
        except (OSError, _BadEntryError):
            return None

    def write_note(self, raw: bytes) -> bool:
        """True when the note now holds these bytes. Silent where it cannot be written: a store warns of that."""
        if self.root is None or not self.is_writable:
            return False
        aside = self.root / f".aside-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self._make_root(self.root)
            if not self._is_trusted(self.root):
                return False
            aside.mkdir(mode=self.folder_mode)
            self._write_file(aside, NOTE, raw)
            (aside / NOTE).replace(self.root / NOTE)
            return True
        except OSError:
            return False
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def prepare(self) -> None:
        """Makes the root and writes a file there, which does not stay: before hours of compiling, not after.

        Raises: OSError: one of the two cannot be done.
        """
        if self.root is None:
            raise FileNotFoundError(errno.ENOENT, "there is no home folder")
        self._make_root(self.root)
        with tempfile.TemporaryFile(dir=self.root):
            pass

    def entries(self) -> list[Entry]:
        """Every readable entry, sorted by key; damaged ones are left out."""
        found = []
        for folder in self._entry_folders():
            with contextlib.suppress(OSError, _BadEntryError):
                record = self._record(folder, folder.name)
                found.append(
                    Entry(
                        key=folder.name,
                        digest=record["digest"],
                        source_digest=record["source_digest"],
                        name=record["name"],
                        arch=record["arch"],
                        compiler=record["compiler"],
                        size_bytes=folders.size(folder),
                        created_seconds=record["created_seconds"],
                        folder=folder,
                    )
                )
        return sorted(found, key=lambda entry: entry.key)

    def total_bytes(self) -> int:
        """Bytes of every file in every entry, the damaged ones too."""
        return sum(folders.size(folder) for folder in self._entry_folders())

    def clear(self) -> int:
        """The number of entries removed; the note and leftovers go too. Touches nothing that looks otherwise."""
        found = list(self._entry_folders())
        for folder in found:
            self._discard(folder)
        self._remove_leftovers(older_than=0.0)
        if self.root is not None and self.is_writable:
            with contextlib.suppress(OSError):
                (self.root / NOTE).unlink()
        for shard in {folder.parent for folder in found}:
            with contextlib.suppress(OSError):
                shard.rmdir()
        return len(found)

    def trim(self, max_bytes: int | None = None, max_age_seconds: float | None = None) -> int:
        """The number of entries removed, oldest builds first, until the rest is young and small enough."""
        entries = sorted(self.entries(), key=lambda entry: entry.created_seconds)
        total, now, removed = sum(entry.size_bytes for entry in entries), time.time(), 0
        for entry in entries:
            is_old = max_age_seconds is not None and now - entry.created_seconds > max_age_seconds
            if is_old or (max_bytes is not None and total > max_bytes):
                self._discard(entry.folder)
                total -= entry.size_bytes
                removed += 1
        self._remove_leftovers(older_than=LEFTOVER_SECONDS)
        return removed

    def _make_root(self, root: Path) -> None:
        """The root with its parents, each of the cache's own mode: mkdir() would give parents that of the umask."""
        for folder in (*reversed(root.parents), root):
            folder.mkdir(mode=self.folder_mode, exist_ok=True)

    def _folder(self, key: str) -> Path:
        if self.root is None or not _KEY.fullmatch(key):
            raise FileNotFoundError(errno.ENOENT, f"no entry can have the key {key!r}")
        return self.root / key[:2] / key

    def _entry_folders(self) -> Iterator[Path]:
        """Folders named like entries; links are passed over, since `clear` must not leave the root."""
        for shard in folders.children(self.root, _SHARD):
            for folder in folders.children(shard, _KEY):
                if folder.name.startswith(shard.name):
                    yield folder

    def _read(self, folder: Path, key: str) -> Binary:
        record = self._record(folder, key)
        files = {name: self._read_file(folder / name) for name in (CUBIN, PTX, LOG)}
        with _bad_entry(RECORD):
            for name, raw in files.items():
                if hashlib.sha256(raw).hexdigest() != record["files"][name]["sha256"]:
                    raise _BadEntryError(name)
            return Binary(
                digest=record["digest"],
                name=record["name"],
                entry=record["entry"],
                arch=record["arch"],
                compiler=record["compiler"],
                cubin=files[CUBIN],
                ptx=files[PTX].decode(),
                log=files[LOG].decode(),
                resources=Resources(**record["resources"]),
                warnings=tuple(record["warnings"]),
                compile_seconds=record["compile_seconds"],
                from_cache=True,
            )

    def _record(self, folder: Path, key: str) -> dict[str, Any]:
        """The checked content of entry.json."""
        raw = self._read_file(folder / RECORD)
        with _bad_entry(RECORD):
            outer = json.loads(raw)
            record = outer["entry"]
            if outer["sha256"] != _sum_of(record) or record["schema"] != SCHEMA or record["key"] != key:
                raise _BadEntryError(RECORD)
            if not (
                all(isinstance(record[name], kind) for name, kind in _FIELDS.items())
                and all(isinstance(number, int) for number in record["resources"].values())
                and all(isinstance(line, str) for line in record["warnings"])
            ):
                raise _BadEntryError(RECORD)
            return dict(record)

    def _read_file(self, path: Path) -> bytes:
        try:
            # Not blocking: a pipe of this name would wait for a writer.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise _BadEntryError(path.name)
                if not self.trusted and (reason := folders.distrust(os.fstat(file.fileno()))):
                    self._warn_distrust(path, reason)
                    raise PermissionError(errno.EACCES, reason)
                return file.read()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise _BadEntryError(path.name) from error

    def _write(self, aside: Path, key: str, binary: Binary, source: Source, source_digest: str, command: str) -> None:
        files = {
            CUBIN: binary.cubin,
            PTX: binary.ptx.encode(),
            LOG: binary.log.encode(),
            UNIT: source.text.encode(),
            **{f"{INCLUDE}/{path}": text.encode() for path, text in source.headers},
        }
        record = {
            "schema": SCHEMA,
            "key": key,
            "digest": binary.digest,
            "source_digest": source_digest,
            "name": binary.name,
            "entry": binary.entry,
            "arch": binary.arch,
            "compiler": binary.compiler,
            "options": list(source.options),
            "command": command,
            "resources": asdict(binary.resources),
            "warnings": list(binary.warnings),
            "compile_seconds": binary.compile_seconds,
            "created_seconds": time.time(),
            "files": {
                path: {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)} for path, raw in files.items()
            },
        }
        files[RECORD] = json.dumps({"entry": record, "sha256": _sum_of(record)}, indent=1).encode()
        aside.mkdir(mode=self.folder_mode)
        for path, raw in files.items():
            self._write_file(aside, path, raw)
        folders.flush(aside)

    def _write_file(self, aside: Path, path: str, raw: bytes) -> None:
        target = aside / path
        for parent in reversed(target.relative_to(aside).parents[:-1]):
            (aside / parent).mkdir(mode=self.folder_mode, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.folder_mode & 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())

    def _discard(self, folder: Path) -> None:
        """Moves an entry out of sight at once, then deletes it; a folder that allows neither stays as it is."""
        if self.root is None or not self.is_writable:
            return
        aside = self.root / f".bad-{folder.name}-{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):
            folder.rename(aside)
            if aside.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.unlink()

    def _remove_leftovers(self, older_than: float) -> None:
        for folder in folders.children(self.root, _LEFTOVER):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime >= older_than:
                    shutil.rmtree(folder, ignore_errors=True)

    def _is_trusted(self, folder: Path) -> bool:
        if self.trusted:
            return True
        try:
            reason = folders.distrust(folder.stat())
        except OSError:
            return True  # absent or out of reach: then nothing is read from it either
        if reason:
            self._warn_distrust(folder, reason)
        return not reason

    def _warn_distrust(self, path: Path, reason: str) -> None:
        works = (
            "chmod go-w it, choose another folder, "
            f"or set {settings.CACHE_TRUST.name}=1 if all who can write it may run code on your GPU"
        )
        self._warn(path, "trust", reason, works)

    def _warn(self, path: Path | None, kind: str, reason: str, works: str) -> None:
        """One warning a process for each root and kind of trouble."""
        mine = object()
        if _warned.setdefault((self.root, kind), mine) is not mine:  # one step, whatever other threads do
            return
        warnings.warn(str(CacheError(str(path or "(none)"), reason, works)), CacheFolderWarning, stacklevel=2)


def user_cache() -> Cache:
    """The cache that this user's builds go to. Raises: UnsupportedError: a setting is no value of its kind."""
    trusted = settings.CACHE_TRUST.read()
    # A folder that is trusted although others write it is one that a group shares on purpose: the umask decides.
    return Cache(settings.CACHE_DIR.read(), trusted=trusted, folder_mode=0o777 if trusted else 0o700)


def prebuilt_caches() -> tuple[Cache, ...]:
    """The read-only folders of the settings, in their order."""
    trusted = settings.CACHE_TRUST.read()
    return tuple(Cache(folder, trusted=trusted, is_writable=False) for folder in settings.PREBUILT.read())


def forget_warnings() -> None:
    """After this, a folder that cannot be used warns once more."""
    _warned.clear()


def _sum_of(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
