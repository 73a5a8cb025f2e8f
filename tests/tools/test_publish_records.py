"""What is shipped of a tuning."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType

import pytest

from tilewright import device, records
from tilewright.bench.suite import problem_of
from tilewright.config import Config
from tilewright.kernels.repack import repacked
from tilewright.packing import packed
from tilewright.records import Record

ROOT = Path(__file__).parents[2]
ASKED = {"dtype": "bf16", "b_major": "k", "mode": "interleaved"}  # of every row


@pytest.fixture
def shipping(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, with an empty folder of shipped files for the H200."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "h200.jsonl").touch()
    monkeypatch.setattr(tool, "SHIPPED", tmp_path / "shipped")
    return tool


def record(m: int, us: float, name: str = "h200") -> Record:
    return Record(
        key=records.key_of(packed(m, 8, 8), device.preset(name)),
        family="hopper",
        config=Config(),
        measured_us=us,
        predicted_us=us,
        spread=0.0,
        rounds=9,
        regime="interleaved",
        digest="0" * 32,
        compiler="nvrtc",
        driver="13.0",
        date="2026-12-01",
    )


def test_the_newest_record_of_each_product_is_shipped_sorted_and_others_are_named(
    shipping: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.jsonl"
    shipped = tmp_path / "shipped" / "h200.jsonl"
    shipped.write_text(record(64, 5.0).line() + "\n" + record(16, 4.0).line() + "\n")
    lines = [record(64, 3.0), record(32, 2.0), record(64, 2.5), record(8, 1.0, "h100")]
    new.write_text("".join(each.line() + "\n" for each in lines))
    assert shipping.main([str(new)]) == 0
    found = [records.record_of(line) for line in shipped.read_text().splitlines()]
    assert [each.measured_us for each in found] == [4.0, 2.0, 2.5]
    assert "left out: NVIDIA H100" in capsys.readouterr().out


def test_shipping_twice_changes_nothing(shipping: ModuleType, tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    new.write_text(record(64, 3.0).line() + "\n")
    shipping.main([str(new)])
    shipped = tmp_path / "shipped" / "h200.jsonl"
    once = shipped.read_text()
    shipping.main([str(new)])
    assert shipped.read_text() == once != ""


def test_a_record_that_a_bench_has_beside_an_equally_fast_choice_is_dropped(
    shipping: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64: 2 % faster, kept; 32: 0.5 %, dropped; 16: the same config; 8: another config by now; 4: not measured."""
    shipped, bench = tmp_path / "shipped" / "h200.jsonl", tmp_path / "bench.json"
    shipped.write_text("".join(record(m, 3.0).line() + "\n" for m in (64, 32, 16, 8, 4)))
    config, other = str(Config()), str(Config(stages=3))
    measured = {64: (10.2, other, config), 32: (10.05, other, config), 16: (9.0, config, config), 8: (9.0, "x", other)}
    rows = [
        ASKED | {"m": m, "n": 8, "k": 8, "candidate": candidate, "median_us": us, "config": name}
        for m, (untuned_us, untuned, recorded) in measured.items()
        for candidate, us, name in (("tilewright", untuned_us, untuned), ("tilewright recorded", 10.0, recorded))
    ]
    rows += [ASKED | {"m": 4, "n": 8, "k": 8, "candidate": "tilewright recorded", "status": "no record"}]
    bench.write_text(json.dumps({"facts": {}, "rows": rows}))
    assert shipping.main(["--confirmed-by", str(bench)]) == 0
    left = [records.record_of(line).key for line in shipped.read_text().splitlines()]
    assert left == sorted(record(m, 3.0).key for m in (64, 16, 8, 4))
    assert "not confirmed: 32x8x8" in capsys.readouterr().out


def test_a_bench_of_copied_operands_speaks_of_the_record_of_the_copies_and_of_each_mode_alone(
    shipping: ModuleType,
) -> None:
    """64 rows of 129: a record of the copies, whose rows are whole lines. In bursts the record is 10 % faster, steady
    it is as fast: neither mode's time is held against the other's, and one that is no better drops it."""
    odd = problem_of((64, 8, 129))
    one = dataclasses.replace(record(64, 3.0), key=records.key_of(repacked(odd, odd.repacked), device.preset("h200")))
    times = {("burst", "tilewright"): 11.0, ("burst", "tilewright recorded"): 10.0}
    times |= {("steady", "tilewright"): 20.0, ("steady", "tilewright recorded"): 20.0}
    config = {"tilewright": "another", "tilewright recorded": str(one.config.beside_copies())}
    rows = [
        ASKED | {"m": 64, "n": 8, "k": 129, "mode": mode, "candidate": name, "median_us": us, "config": config[name]}
        for (mode, name), us in times.items()
    ]
    assert shipping.refuted(rows, [one]) == {one.key}
    assert shipping.refuted(rows[:2], [one]) == set()
    assert shipping.refuted([ASKED | each | {"b_major": "n"} for each in rows], [one]) == set()
