"""What is committed of a benchmark run, and that every document's tables are made from it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.bench import epilogue_report, lines_report, report, suite_page, torch_report

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LARGEST_BYTES = 300 << 10  # of one committed file


def test_every_table_of_every_document_is_what_the_committed_rows_make(tool: ModuleType) -> None:
    with_tables = [
        path for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if "<!-- table: " in path.read_text()
    ]
    assert set(with_tables) == set(tool.DOCUMENTS)
    for document in with_tables:
        assert report.main([str(RESULTS), "--into", str(document), "--check"]) == 0, document
        assert "_No rows._" not in document.read_text()


def test_committed_files_are_small_and_name_device_day_and_versions() -> None:
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for file in files:
        facts = json.loads(file.read_text())["facts"]
        assert file.stat().st_size < LARGEST_BYTES
        device = facts["device"].removeprefix("NVIDIA ").split()[0].lower()
        assert file.name.startswith(f"{device}_{facts['date']}_")
        versions = ("nvidia_cuda_nvrtc", "numpy") if device == "emulator" else ("driver_cuda", "compiler")
        assert all(facts[version] for version in versions)
        assert facts["command"].startswith(("benchmarks/", "tilewright ", "python -m tilewright."))


def test_a_published_file_has_one_row_a_line_and_no_path_of_the_machine(tool: ModuleType, tmp_path: Path) -> None:
    facts = {
        "device": "NVIDIA H100 80GB HBM3",
        "date": "2026-12-01",
        "command": "benchmarks/h200.py --into /home/x --host",
    }
    rows = [{"kind": "host", "way": way, "median_us": 1.5} for way in ("a", "b")]
    (tmp_path / "host.json").write_text(json.dumps({"facts": facts, "rows": rows}))
    file = tool.publish(tmp_path / "host.json", tmp_path / "results", commit="abc")
    assert file.name == "h100_2026-12-01_host.json"
    content = json.loads(file.read_text())
    assert content["rows"] == rows
    assert content["facts"] == facts | {"command": "benchmarks/h200.py --into OUT --host", "commit": "abc"}
    assert sum('"way"' in line for line in file.read_text().splitlines()) == 2


def test_check_rows_are_condensed(tool: ModuleType, tmp_path: Path) -> None:
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "benchmarks/h200.py"}
    row = {"kind": "check", "config": "c", "m": 1, "n": 8, "k": 8, "dtype": "bf16", "out_dtype": "bf16", "b_major": "k"}
    row |= {"data": "normal", "status": "ok", "elements": 8, "worst": 0.5}
    (tmp_path / "check.json").write_text(json.dumps({"facts": facts, "rows": [row, row]}))
    file = tool.publish(tmp_path / "check.json", tmp_path)
    (condensed,) = json.loads(file.read_text())["rows"]
    assert (condensed["products"], condensed["shapes"]) == (2, [[1, 8, 8]])


def test_rows_of_unaligned_products_are_condensed(tool: ModuleType, tmp_path: Path) -> None:
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "benchmarks/unaligned.py"}
    check = {"kind": "check", "case": "one", "status": "ok", "worst": 0.5, "why": "right"}
    for part, kind in (("unaligned", "unaligned"), ("unaligned_earlier", "unaligned-earlier")):
        (tmp_path / f"{part}.json").write_text(json.dumps({"facts": facts, "rows": [check] * 3}))
        (row,) = json.loads(tool.publish(tmp_path / f"{part}.json", tmp_path).read_text())["rows"]
        assert (row["kind"], row["part"], row["cases"], row["failed"]) == (kind, "check", 3, [])


def test_rows_of_dependent_launches_get_a_kind_of_their_own(tool: ModuleType, tmp_path: Path) -> None:
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "benchmarks/dependent.py --into /home/x/y.json"}
    rows = [{"kind": "check", "case": "c", "status": "ok", "why": ""}, {"kind": "time", "status": "ok", "waves": 1.0}]
    (tmp_path / "dependent.json").write_text(json.dumps({"facts": facts, "rows": rows}))
    published = tool.publish(tmp_path / "dependent.json", tmp_path / "results")
    assert published.name == "h200_2026-12-01_dependent.json"
    check, time = json.loads(published.read_text())["rows"]
    assert (check["kind"], check["part"], check["ok"]) == ("dependent", "check", 1)
    assert time == {"kind": "dependent", "part": "time", "status": "ok"}
    assert "dependent" in tool.PARTS


def test_rows_of_lines_are_cut_to_what_is_read_and_drawn(tool: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "benchmarks/lines.py"}
    row = {"kind": "line", "line": "1..3x8x8", "n": 8, "k": 8, "status": "ok", "median_us": 2.0, "baseline": "1x8x8"}
    row |= {"lower_us": 1.9, "upper_us": 2.1, "spread": 0.1, "config": "c"}
    (tmp_path / "lines.json").write_text(json.dumps({"facts": facts, "rows": [row | {"m": m} for m in (1, 2, 3)]}))
    published = tool.publish(tmp_path / "lines.json", tmp_path / "results")
    rows = json.loads(published.read_text())["rows"]
    assert [(each["m"], "baseline" in each) for each in rows] == [(1, False), (2, False), (3, False)]
    picture = tool.picture_of(published, tmp_path / "plots")
    assert picture == tmp_path / "plots" / "lines_h200.svg"
    tool.draw(published, picture)
    assert lines_report.digest(rows) in picture.read_text()
    assert tool.picture_of(tmp_path / "h200_2026-12-01_time.json", tmp_path) is None


def test_the_picture_of_committed_rows_shows_their_numbers(tool: ModuleType) -> None:
    for file in report.files_of([RESULTS]):
        if (picture := tool.picture_of(file, tool.PLOTS)) is not None:
            digest = tool.PICTURES[file.stem.split("_", 2)[2]]
            assert digest(json.loads(file.read_text())["rows"]) in picture.read_text(), picture


def test_the_readmes_first_words_have_the_figures_of_the_committed_suite() -> None:
    (file,) = [path for path in report.files_of([RESULTS]) if path.stem.endswith("_bench")]
    rows = json.loads(file.read_text())["rows"]
    over_cublas, over_tuned = suite_page.mean_cells(rows)
    even = suite_page.mean_cells([row for row in rows if row["group"] != "odd"])
    means = [float(cells[3].strip("*")) for cells in (over_cublas, over_tuned)]
    least = [float(cells[4]) for cells in (over_cublas, over_tuned)]
    head = " ".join((ROOT / "README.md").read_text().split("## Install")[0].split())
    assert f"Over the {over_cublas[0]} products of its suite it is {means[0]:.2f} times as fast as cuBLAS" in head
    assert f"and {means[1]:.2f} times as fast as the best" in head
    assert int(over_cublas[0]) - int(even[0][0]) == 7
    without = " and ".join(f"{float(cells[3].strip('*')):.2f}" for cells in even)
    assert f"without the seven odd sizes the means are {without}" in head
    assert f"No shape is slower than {least[0]:.2f} of cuBLAS" in head
    assert f"and none has less than {least[1]:.2f} of the best's speed" in head


def test_the_readmes_words_on_layers_blocks_and_calls_have_the_figures_of_the_committed_rows() -> None:
    rows = report.read_rows(report.files_of([RESULTS]))
    text = " ".join((ROOT / "README.md").read_text().split())
    layers = [row for row in rows if row["kind"] == epilogue_report.KIND and row.get("ratio_compile")]
    eager, compiled = (epilogue_report.layers_mean(layers, key) for key in ("ratio", "ratio_compile"))
    assert len(layers) == 9
    assert f"nine layers of LLMs are {eager:.2f} times as fast as in eager PyTorch and {compiled:.2f} times" in text
    least = min(layers, key=lambda row: row["ratio"])
    assert (least["layer"], least["tokens"]) == ("linear residual", 1024)
    assert f"1024 tokens with {least['ratio']:.2f} and {least['ratio_compile']:.2f} times" in text
    blocks = [row for row in rows if row["kind"] == torch_report.MODEL and row["part"] == "block"]
    forward, both, compiled = (
        next(row for row in blocks if (row["mode"], row["pass"]) == which)
        for which in (("eager", "forward"), ("eager", "forward and backward"), ("compiled", "forward and backward"))
    )
    assert f"{forward['ratio']:.3f} times as fast as torch's forward, and {both['ratio']:.3f} times forward and" in text
    assert f"compiled it is as fast as torch's and no faster, {compiled['ratio']:.3f} times" in text
    assert forward["least"] > 1
    assert both["least"] > 1
    assert compiled["least"] < 1 < compiled["most"]
    calls = [row for row in rows if row["kind"] == torch_report.HOST and "bar" in row]
    without, others = ([row["ratio"] for row in calls if row["bar"] == bar] for bar in (1.25, 2.0))
    assert f"costs the host {min(without):.2f} to {max(without):.2f} times what torch's costs" in text
    assert f"through torch.library {min(others):.2f} to {max(others):.2f} times" in text


def test_rows_of_epilogues_and_of_torch_get_kinds_of_their_own(tool: ModuleType, tmp_path: Path) -> None:
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "benchmarks/host.py"}
    for part, row in (("layers", {"kind": "layer"}), ("torch_host", {"way": "a"}), ("model", {"part": "block"})):
        (tmp_path / f"{part}.json").write_text(json.dumps({"facts": facts, "rows": [row]}))
        published = tool.publish(tmp_path / f"{part}.json", tmp_path / "results")
        assert published.name == f"h200_2026-12-01_{part}.json"
        (kept,) = json.loads(published.read_text())["rows"]
        assert kept["kind"] == {"layers": "epilogue"}.get(part, part)
        assert tool.picture_of(published, tmp_path) is None


def test_rows_of_a_suite_say_which_records_are_shipped(tool: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    facts = {"device": "NVIDIA H200", "date": "2026-12-01", "command": "tilewright bench all --into OUT"}
    config = tool.shipped((16, 4096, 4096), "h200")
    assert config is not None
    assert tool.shipped((16, 4096, 4097), "h200") is None
    head = {"kind": "bench", "group": "g", "shape": "16x4096x4096", "m": 16, "n": 4096, "k": 4096, "status": "ok"}
    head |= {"mode": "interleaved", "median_us": 2.0, "spread": 0.1, "num_sets": 5, "data": "normal", "ratio": 1.5}
    rows = [head | {"candidate": "cublas", "config": None}, head | {"candidate": "tilewright", "config": "a"}]
    rows += [head | {"candidate": "tilewright recorded", "config": each} for each in (config, config + " else")]
    for recorded, status in zip(rows[2:], ("ok", "dropped"), strict=True):
        (tmp_path / "bench.json").write_text(json.dumps({"facts": facts, "rows": [*rows[:2], recorded]}))
        published = tool.publish(tmp_path / "bench.json", tmp_path / "results")
        assert json.loads(published.read_text())["rows"][2]["status"] == status
    picture = tool.picture_of(published, tmp_path / "plots")
    assert picture == tmp_path / "plots" / "suite_h200.svg"
    tool.draw(published, picture)
    assert suite_page.digest(json.loads(published.read_text())["rows"]) in picture.read_text()
