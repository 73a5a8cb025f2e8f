"""`tilewright bench`: with a made-up GPU, without one, and of rows that were measured elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import call, printed, refused

from fakes import T4
from tilewright.bench import suite, suite_run


def row(candidate: str | None, shape: tuple[int, int, int], mode: str, status: str = "ok") -> dict[str, Any]:
    m, n, k = shape
    return {
        "kind": "bench", "group": "g", "shape": f"{m}x{n}x{k}", "m": m, "n": n, "k": k, "mode": mode,
        "candidate": candidate, "status": status, "median_us": 10.0, "spread": 0.01, "num_sets": 5, "is_cold": True,
        "ratio": None if candidate == "cublas" else 1.25, "ratio_tuned": 1.125, "data": "normal", "why": "it says why",
        "share_of_floor": 0.5, "config": "128x256", "compiler": "nvrtc 13",
    }  # fmt: skip


@pytest.fixture
def measured(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU on which every shape takes 10 us: the runs that were asked for; `wrong` makes the last one's rows wrong."""
    asked: list[Any] = []

    def go(run: Any) -> list[dict[str, Any]]:
        asked.append(run)
        run.progress(0, "starting")
        run.journal.add({"kind": "facts", "device": "NVIDIA H200"})
        own = "wrong" if gpu.name == "h100" else "ok"
        return [
            row(name, entry.shape, mode, status)
            for entry in run.entries
            for mode in run.options.modes
            for name, status in (("cublas", "ok"), ("tilewright", own))
        ]

    monkeypatch.setattr(suite_run.Run, "go", go)
    return asked


def test_a_suite_is_measured_and_rows_page_and_plot_are_written(measured: list[Any], tmp_path: Path) -> None:
    text = printed("bench", "tiny,64x32x16", "--into", str(tmp_path / "out"))
    assert "384, 128, 256" in text
    assert "1.250" in text
    assert "geometric mean" in text
    (run,) = measured
    assert [str(entry) for entry in run.entries] == ["128x128x128", "384x128x256", "64x32x16"]
    assert run.options == suite_run.Options()
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert content["facts"]["device"] == "NVIDIA H200"
    assert content["facts"]["compiler"] == "nvrtc 13"
    assert len(content["rows"]) == 6
    assert (tmp_path / "out" / "bench.md").exists()


def test_help_names_every_suite() -> None:
    words = printed("bench", "--help").replace("│", " ").split()
    assert {*suite.GROUPS, *suite.SWEEPS} <= {word.strip(",;") for word in words}


def test_options_reach_the_run(measured: list[Any], tmp_path: Path) -> None:
    earlier = tmp_path / "rows.jsonl"
    earlier.write_text("")
    words = ["--modes", "burst,steady", "--rounds", "3", "--dtype", "fp16", "--b-major", "n", "--tune-s", "2.5"]
    words += ["--tuned-from", str(earlier), "--time-budget", "500", "--limit-s", "33", "--into", str(tmp_path / "out")]
    printed("bench", "64x32x16", *words)
    assert measured[0].options == suite_run.Options(
        modes=("burst", "steady"), rounds=3, dtype="fp16", b_major="n", tune_s=2.5, tuned_from=earlier, budget_s=500.0,
        limit_s=33.0,
    )  # fmt: skip


def test_a_wrong_product_fails_the_command(measured: list[Any], gpu: SimpleNamespace, tmp_path: Path) -> None:
    gpu.name = "h100"
    result = call("bench", "64x32x16", "--into", str(tmp_path))
    assert result.exit_code == 1
    assert "64, 32, 16, interleaved, tilewright: wrong: it says why" in result.stderr


def test_without_a_gpu_it_says_what_it_needs(tmp_path: Path) -> None:
    assert "no libcuda.so.1" in refused("bench", "tiny", "--into", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_what_it_needs(gpu: SimpleNamespace, tmp_path: Path) -> None:
    gpu.has_torch = False
    assert "torch with CUDA is not installed" in refused("bench", "tiny", "--into", str(tmp_path / "out"))


def test_on_a_card_that_cannot_run_the_kernels_it_says_what_it_needs(gpu: SimpleNamespace, tmp_path: Path) -> None:
    gpu.device = T4
    assert "compute capability" in refused("bench", "tiny", "--into", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("squares",), "a suite is all, one of square, tiny"),
        (("none.json",), "none.json"),
        (("tiny", "--modes", "warm"), "'warm' is none of burst, interleaved, steady"),
        (("tiny", "--dtype", "int8"), "dtype int8"),
        (("tiny", "--b-major", "m"), "b_major = 'm'"),
        (("tiny", "--tuned-from", "none.jsonl"), "none.jsonl"),
        (("tiny", "--records", "none.json"), "none.json"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_device_is_opened(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("bench", *words)


def test_rows_that_are_no_json_are_refused_where_a_run_would_go_on(measured: list[Any], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe")
    assert "rows.jsonl" in refused("bench", "tiny", "--into", str(tmp_path))
    assert measured == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    measured: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    assert "--into" in refused("bench", "tiny", "--into", str(tmp_path / "file"))
    assert measured == []


def test_rows_of_elsewhere_are_shown_without_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    rows = [row(name, (64, 32, 16), "steady") for name in ("cublas", "cublaslt", "tilewright")]
    file.write_text(json.dumps({"facts": {}, "rows": rows}))
    text = printed("bench", "--show", str(file))
    assert "steady, summary" in text
    assert "64, 32, 16" in text


def test_rows_that_mislead_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row("tilewright", (64, 32, 16), "steady")) + "\n")
    assert "no time of cuBLAS" in refused("bench", "--show", str(file))
