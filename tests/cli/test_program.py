"""The program as a whole: help, versions, refusals, and the machine's state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command_line import call, printed, refused

import tilewright
from tilewright.cli import app


def test_help_lists_every_command() -> None:
    words = printed("--help").split()
    assert {"run", "show", "build", "bench", "cache", "doctor"} <= set(words)


def test_the_version_is_printed() -> None:
    assert printed("--version").startswith("tilewright ")


def test_help_loads_no_numpy_no_compiler_no_driver_and_no_torch() -> None:
    code = """
import sys
from tilewright.cli import app
app(["run", "--help"], standalone_mode=False)
print(sorted({"numpy", "cuda", "torch", "tilewright.plan", "tilewright.jit"} & set(sys.modules)), file=sys.stderr)
"""
    package = str(Path(tilewright.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tilewright.__file__).parents[1])}
    command = [sys.executable, "-m", "tilewright", "cache", "path"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == os.environ["TILEWRIGHT_CACHE_DIR"]


def test_every_option_that_names_a_file_or_folder_refuses_an_empty_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path("") is the folder that the command runs in, which a script whose variable is unset would fill."""
    monkeypatch.chdir(tmp_path)
    options = {
        (name, option.opts[0])
        for name, command in typer.main.get_command(app).commands.items()
        for option in command.params
        if str(option.metavar).startswith(("DIR", "FILE")) and option.metavar != "FILE|GROUP"
    }
    assert {("build", "--into"), ("tune", "--build"), ("emulate", "--save")} <= options
    for name, option in sorted(options):
        assert f"'{option}': '' names no file or folder" in refused(name, option, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("run",), ("show",), ("build", "--into", "unused")])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-5", "8", "8"), "error: m = -5: sizes run from 0 to"),
        (("8", "8", "99999999999"), "error: k = 99999999999: sizes run from 0 to"),
        (("0", "8", "8"), "give sizes from 1 up"),
        (("8", "8", "8", "--dtype", "uint8"), "error: dtype uint8: tilewright multiplies bf16, fp16"),
        (("8", "8", "8", "--dtype", "fp32"), "error: inputs of fp32"),
        (("8", "8", "8", "--dtype", "int8", "--sums", "fp16"), "error: int8 inputs with sums in fp16"),
        (("8", "8", "8", "--dtype", "int8", "--out-dtype", "fp16"), "use an out of int32"),
        (("8", "8", "8", "--dtype", "bf16", "--out-dtype", "int32"), "use an out of bf16, fp32 or fp16"),
        (("8", "8", "8", "--config", "tile_x=3"), "tile_x is no field; fields are tile_m, tile_n"),
        (("8", "8", "8", "--config", "tile_m=wide"), "tile_m = 'wide' is not a whole number"),
        (("8", "8", "8", "--config", "stages=4.0"), "stages = '4.0' is not a whole number"),
        (("8", "8", "8", "--config", "schedule=3"), "schedule = 3 is not a word"),
        (("8", "8", "8", "--config", "stages=" + "9" * 5000), "is not a whole number"),
        (("8", "8", "8", "--config", "stages"), "'stages' is not KEY=VALUE"),
        (("8", "8", "8", "--config", "slices=4,stages=3"), "'slices=4,stages=3' is more than one KEY=VALUE"),
        (("8", "8", "8", "--config", "stages=3", "--config", "stages=4"), "stages is given twice"),
        (("8", "8", "8", "--device", "h300"), "error: device 'h300': presets are h200, h100"),
        (("8", "8", "8", "--device", "a100", "--config", "pingpong=true"), "pingpong = True is for the hopper family"),
        (("8", "8", "8", "--num-sms", "0"), "--num-sms"),
        (("8", "8", "8", "--num-sms", "500"), "num_sms = 500"),
        (("8", "8", "8", "--b-major", "m"), "--b-major"),
        (("8", "8", "wide"), "wide"),
        (("8", "8"), ""),
        (("8", "8", "8", "--fast"), "--fast"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(command: tuple[str, ...], words: tuple[str, ...], sentence: str) -> None:
    if sentence == "wide" and command[0] != "build":
        sentence = "'K'"
    assert sentence in refused(*command, *words)
    assert not Path("unused").exists()


def test_an_illegal_config_is_refused_with_every_violation() -> None:
    changes = [word for pair in ("tile_m=100", "tile_n=7", "stages=99") for word in ("--config", pair)]
    said = refused("run", "64", "64", "64", *changes)
    assert all(fact in said for fact in ("tile_m = 100 is not", "tile_n = 7 is not", "stages = 99 is outside 2 .. 32"))


def test_a_setting_that_is_no_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_TRUST", "maybe")
    assert "TILEWRIGHT_CACHE_TRUST=maybe" in refused("run", "64", "64", "64")


def test_doctor_is_content_with_a_machine_that_compiles() -> None:
    text = printed("doctor")
    assert "compiles kernels: yes; runs them: no" in text
    assert "TILEWRIGHT_CACHE_DIR" in text


def test_doctor_strict_fails_without_a_usable_gpu() -> None:
    assert call("doctor", "--strict").exit_code == 1


def test_doctor_json_holds_findings_and_settings() -> None:
    report = json.loads(printed("doctor", "--json"))
    assert report["can_compile"] is True
    assert report["can_run"] is False
    assert {row["name"] for row in report["settings"]} >= {"TILEWRIGHT_CACHE_DIR", "TILEWRIGHT_PREBUILT"}
    assert {finding["topic"] for finding in report["findings"]} >= {"NVRTC", "driver", "cache", "torch", "nvdisasm"}
