"""The table of environment variables."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tilewright import settings
from tilewright.errors import UnsupportedError


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TILEWRIGHT_")]:
        monkeypatch.delenv(name)


def test_every_setting_reads_its_own_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.SETTINGS:
        monkeypatch.setenv(setting.name, setting.example)
        setting.read()


def test_names_are_prefixed_unique_and_under_a_dozen() -> None:
    names = [setting.name for setting in settings.SETTINGS]
    assert all(re.fullmatch(r"TILEWRIGHT_[A-Z_]+", name) for name in names)
    assert len(set(names)) == len(names) < 12


def test_the_table_holds_every_setting_of_the_module() -> None:
    found = {value for value in vars(settings).values() if isinstance(value, settings.Setting)}
    assert found == set(settings.SETTINGS)


def test_an_empty_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_COMPILE_THREADS", " ")
    assert settings.COMPILE_THREADS.read() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["TILEWRIGHT_COMPILE_THREADS", "TILEWRIGHT_CACHE_TRUST"])
@pytest.mark.parametrize("text", ["0x2", "-1", "maybe", "2.5", "\u00b2"])
def test_a_bad_value_is_refused_with_name_rule_and_example(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    setting = next(setting for setting in settings.SETTINGS if setting.name == name)
    with pytest.raises(UnsupportedError, match=re.escape(f"{name}={text}: ")) as caught:
        setting.read()
    assert setting.example in caught.value.works


@pytest.mark.parametrize(("text", "value"), [("1", True), ("On", True), ("no", False), ("FALSE", False)])
def test_a_switch_takes_the_usual_words(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_TRUST", text)
    assert settings.CACHE_TRUST.read() is value


def test_folders_split_at_the_path_separator_and_skip_empty_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", os.pathsep.join(("/a", "", "~/b", "c")))
    assert settings.PREBUILT.read() == (Path("/a"), Path("/home/someone/b"), Path.cwd() / "c")


def test_without_a_home_there_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/tilewright")
    assert settings.CACHE_DIR.read() is None


def test_rows_list_a_bad_value_as_its_error_and_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_COMPILE_THREADS", "many")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "/somewhere")
    rows = {row.name: row for row in settings.rows()}
    assert list(rows) == [setting.name for setting in settings.SETTINGS]
    assert not rows["TILEWRIGHT_COMPILE_THREADS"].is_valid
    assert "whole number" in rows["TILEWRIGHT_COMPILE_THREADS"].value
    assert rows["TILEWRIGHT_CACHE_DIR"].value == "/somewhere"
    assert rows["TILEWRIGHT_CACHE_DIR"].is_set
    assert rows["TILEWRIGHT_PREBUILT"].value == rows["TILEWRIGHT_PREBUILT"].default == "none"
    assert rows["TILEWRIGHT_CACHE_TRUST"].value == "0"
    assert all(row.meaning for row in rows.values())


def test_a_misspelled_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHEDIR", "/x")
    assert settings.unknown_names() == ("TILEWRIGHT_CACHEDIR",)
