"""Every environment variable that tilewright reads, in one typed table.

Knows names, types, defaults and meanings; knows nothing of what its readers do with a value. Nothing is read at
import and nothing is kept: a reader asks on its cold path, and the warm path of a call reads no environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewright.errors import UnsupportedError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One variable. `parse` raises ValueError with the rule that a text breaks; `default` is asked at each read."""

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    meaning: str
    example: str

    def read(self) -> T:
        """The value for this process, the default where the variable is unset or empty.

        Raises: UnsupportedError: the text is not a value of this setting.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise UnsupportedError(
                asked=f"{self.name}={text}",
                rule=str(error),
                works=f"set it like {self.name}={self.example} or unset it",
            ) from error


@dataclass(frozen=True)
class SettingRow:
    """One line of `tilewright doctor`. A bad value shows its error as the value, so that the list is always whole."""

    name: str
    value: str
    default: str
    meaning: str
    is_set: bool
    is_valid: bool


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("a switch is one of 1, true, yes, on, 0, false, no, off")
    return words[text.lower()]


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a count is a whole number from 1 up")
    return int(text)


def _folder(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # expanduser: no home to put in the place of ~
        raise ValueError("the ~ in this path names no home folder") from error


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(_folder(part) for part in text.split(os.pathsep) if part.strip())


def _user_cache() -> Path | None:
    """The user's cache folder, or None where there is no home (a container whose uid has no account)."""
    import platformdirs  # here: the default is asked on a cold path, and `import tilewright` stays light

    folder = Path(platformdirs.user_cache_dir("tilewright", appauthor=False))
    return folder if folder.is_absolute() else None  # without a home it stays "~/.cache/...", relative to anywhere


def _user_records() -> Path | None:
    """The user's file of measured choices, or None where there is no home."""
    import platformdirs  # see _user_cache()

    folder = Path(platformdirs.user_data_dir("tilewright", appauthor=False))
    return folder / "records.jsonl" if folder.is_absolute() else None


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0))  # os.cpu_count() counts the host's CPUs, of which a container may use two


CACHE_DIR: Setting[Path | None] = Setting(
    name="TILEWRIGHT_CACHE_DIR",
    parse=_folder,
    default=_user_cache,
    meaning="folder of compiled kernels; made with mode 0700",
    example="/var/cache/tilewright",
)
CACHE_TRUST: Setting[bool] = Setting(
    name="TILEWRIGHT_CACHE_TRUST",
    parse=_switch,
    default=lambda: False,
    meaning="use cache and prebuilt folders that other users can write: they could then run code on your GPU",
    example="1",
)
PREBUILT: Setting[tuple[Path, ...]] = Setting(
    name="TILEWRIGHT_PREBUILT",
    parse=_folders,
    default=tuple,
    meaning=f"read-only folders of `tilewright build --into`, joined by '{os.pathsep}'; asked before compiling",
    example="/opt/kernels",
)
COMPILE_THREADS: Setting[int] = Setting(
    name="TILEWRIGHT_COMPILE_THREADS",
    parse=_count,
    default=_usable_cpus,
    meaning="kernels compiled at the same time; each takes one core and about 30 MB",  # measured 2026-11-30, x86-64
    example="4",
)

RECORDS: Setting[Path | None] = Setting(
    name="TILEWRIGHT_RECORDS",
    parse=_folder,
    default=_user_records,
    meaning="file of this user's measured choices, which `tilewright tune` appends to",
    example="/var/lib/tilewright/records.jsonl",
)
USE_RECORDS: Setting[bool] = Setting(
    name="TILEWRIGHT_USE_RECORDS",
    parse=_switch,
    default=lambda: True,
    meaning="choose by measured records where there are some; 0: by the model alone, the shipped records left out too",
    example="0",
)

SETTINGS: tuple[Setting[Any], ...] = (CACHE_DIR, CACHE_TRUST, PREBUILT, COMPILE_THREADS, RECORDS, USE_RECORDS)


def rows() -> tuple[SettingRow, ...]:
    """Every setting with its value, default and meaning, in the table's order. Raises nothing for a bad value."""
    return tuple(_row(setting) for setting in SETTINGS)


def unknown_names() -> tuple[str, ...]:
    """Variables of this environment that begin with TILEWRIGHT_ and are no setting: most likely misspelled."""
    known = {setting.name for setting in SETTINGS}
    return tuple(sorted(name for name in os.environ if name.startswith("TILEWRIGHT_") and name not in known))


def _row(setting: Setting[Any]) -> SettingRow:
    is_valid = True
    try:
        value = _show(setting.read())
    except UnsupportedError as error:
        value, is_valid = str(error), False
    is_set = bool(os.environ.get(setting.name, "").strip())
    return SettingRow(setting.name, value, _show(setting.default()), setting.meaning, is_set, is_valid)


def _show(value: object) -> str:
    """A value as one would write it into the variable."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value))
    return str(value)
