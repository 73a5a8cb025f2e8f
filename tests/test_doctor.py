"""What `tilewright doctor` finds, with pieces of the machine taken away."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from fakes import T4
from tilewright import device, disassemble, doctor
from tilewright.backends import cuda
from tilewright.doctor import Finding, examine
from tilewright.errors import DriverError, UnsupportedError
from tilewright.jit import build, cache, nvrtc
from tilewright.jit.source import Source


def no_driver() -> NoReturn:
    raise DriverError("cuInit", "no libcuda.so.1", "install release 580 or newer", "0")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder of this test, no other setting, and no driver unless a test brings one."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    for name in ("CACHE_TRUST", "PREBUILT", "COMPILE_THREADS"):
        monkeypatch.delenv(f"TILEWRIGHT_{name}", raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    monkeypatch.setattr(cuda, "backend", no_driver)
    build.clear()
    cache.forget_warnings()
    yield folder
    build.clear()


def found(topic: str) -> list[Finding]:
    return [finding for finding in examine().findings if finding.topic == topic]


def test_without_a_driver_kernels_compile_and_do_not_run() -> None:
    report = examine()
    assert report.can_compile
    assert not report.can_run


def test_without_a_driver_the_emulator_still_runs_kernels() -> None:
    (emulator,) = found("emulator")
    assert emulator.state == "ok"
    assert "on this CPU" in emulator.value


def test_a_missing_driver_is_a_note_with_what_to_install() -> None:
    (driver,) = found("driver")
    assert (driver.state, driver.value) == ("note", "cuInit: no libcuda.so.1")
    assert "580" in driver.advice


@pytest.mark.parametrize(
    ("preset", "is_usable"), [("h200", True), ("h20", True), ("a100", True), ("rtx4090", True), ("t4", False)]
)
def test_a_gpu_is_usable_where_a_kernel_is_written_for_it(
    monkeypatch: pytest.MonkeyPatch, preset: str, is_usable: bool
) -> None:
    backend = SimpleNamespace(
        driver_version=13000, num_devices=lambda: 1, device=lambda _: T4 if preset == "t4" else device.preset(preset)
    )
    monkeypatch.setattr(cuda, "backend", lambda: backend)
    report = examine()
    (gpu,) = [finding for finding in report.findings if finding.topic == "GPU 0"]
    assert report.can_run is is_usable
    assert gpu.state == ("ok" if is_usable else "note")
    assert is_usable or "9.0" in gpu.value


def test_one_usable_gpu_among_others_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [T4, device.preset("h100")]
    backend = SimpleNamespace(driver_version=13010, num_devices=lambda: 2, device=lambda i: cards[i])
    monkeypatch.setattr(cuda, "backend", lambda: backend)
    report = examine()
    assert report.can_run
    assert [finding.value for finding in report.findings if finding.topic == "driver"] == ["CUDA 13.1"]


def test_a_driver_that_shows_no_gpu_names_the_variable_that_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "backend", lambda: SimpleNamespace(driver_version=13000, num_devices=lambda: 0))
    (gpu,) = found("GPU")
    assert "CUDA_VISIBLE_DEVICES" in gpu.advice


def test_a_missing_compiler_is_a_problem_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: Source, digest: str) -> NoReturn:
        raise UnsupportedError("compiling a kernel", "it needs NVRTC 13.0 or newer", "pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(nvrtc, "compile_source", missing)
    report = examine()
    (compiler,) = [finding for finding in report.findings if finding.topic == "NVRTC"]
    assert not report.can_compile
    assert (compiler.state, compiler.advice) == ("problem", "pip install nvidia-cuda-nvrtc")


def test_a_missing_disassembler_keeps_nothing_from_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> NoReturn:
        raise UnsupportedError("SASS", "not installed", "pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(disassemble, "nvdisasm", missing)
    assert [finding.state for finding in found("nvdisasm")] == ["note"]
    assert examine().can_compile


def test_an_empty_cache_is_counted_and_trusted(cache_folder: Path) -> None:
    assert found("cache") == [Finding(topic="cache", value=f"{cache_folder}: 0 entries, 0.0 MiB; trusted")]


def test_a_cache_that_others_can_write_is_a_problem_that_names_the_remedy(cache_folder: Path) -> None:
    cache_folder.chmod(0o777)
    (finding,) = found("cache")
    assert finding.state == "problem"
    assert "chmod go-w" in finding.value
    assert found("cache") == [finding]  # told again although a process warns once


def test_a_cache_below_a_plain_file_is_not_writable(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cache_folder / "file"
    file.touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(file / "cache"))
    (finding,) = found("cache")
    assert (finding.state, finding.value.endswith("not writable")) == ("note", True)


def test_a_prebuilt_folder_that_is_not_there_is_a_problem(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_PREBUILT", str(cache_folder / "nowhere"))
    assert [finding.state for finding in found("prebuilt")] == ["problem"]


def test_a_bad_and_an_unknown_setting_are_both_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_TRUST", "maybe")
    monkeypatch.setenv("TILEWRIGHT_CASH_DIR", "/tmp")
    bad, unknown = found("settings")
    assert (bad.state, unknown.state) == ("problem", "note")
    assert "TILEWRIGHT_CASH_DIR" in unknown.value


def test_examining_writes_nothing(cache_folder: Path) -> None:
    examine()
    assert list(cache_folder.iterdir()) == []


def test_the_packages_are_the_dependencies_of_the_project() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    required = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert {re.split(r"[<>=~]", line)[0] for line in required} == set(doctor.PACKAGES)
