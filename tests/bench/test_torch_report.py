"""bench/torch_report.py: calls and models beside torch, as lines of tables."""

from __future__ import annotations

from tilewright.bench.torch_report import HOST, MODEL, block_table, host_table, published, training_table


def test_a_way_of_ours_stands_beside_torchs_and_what_calls_left_behind_is_told() -> None:
    rows = [
        {"way": "torch.mm", "median_us": 10.0},
        {"way": "tilewright.matmul", "median_us": 12.5, "over": "torch.mm", "ratio": 1.24, "bar": 1.25},
        {"calls": 1000, "host_kib": 3, "device_bytes": 4},
    ]
    table = host_table(published(HOST, rows))
    assert table.splitlines()[2:4] == ["| `tilewright.matmul` | 12.5 | torch.mm | 10.0 | **1.24** | 1.25 |", ""]
    assert "1,000 calls more left 3 KiB in the process's peak memory and 4 bytes of the device's behind" in table


def test_a_block_has_its_range_and_both_peaks() -> None:
    row = {"part": "block", "mode": "eager", "pass": "forward", "torch_ms": 3.3493, "tilewright_ms": 3.3313}
    row |= {"ratio": 1.0052, "least": 0.9699, "most": 1.0154, "torch_peak_mib": 2192, "tilewright_peak_mib": 2193}
    table = block_table(published(MODEL, [row | {"apart": 0.0507}]))
    assert "| eager | forward | 3.349 | 3.331 | **1.005** | 0.970 .. 1.015 | 2,192, 2,193 | 0.051 |" in table


def test_a_training_run_has_its_losses_and_how_far_they_are_from_torchs() -> None:
    run = {"part": "training", "ms_a_step": 15.694, "peak_mib": 4176, "losses": [2.0, 1.0, 0.5]}
    rows = [run | {"run": "torch eager"}, run | {"run": "tilewright eager"}]
    beside = {"apart": {"tilewright eager": 0.000127}, "off": {"torch eager": 0.002, "tilewright eager": 0.001}}
    rows.append({"part": "training", "run": "losses beside torch eager's, and beside those of float32", **beside})
    table = training_table(published(MODEL, rows))
    assert table.splitlines()[2:5] == [
        "| torch eager | 15.69 | 2.00000 | 0.50000 | - | 2.00e-03 | 4,176 |",
        "| tilewright eager | 15.69 | 2.00000 | 0.50000 | 1.27e-04 | 1.00e-03 | 4,176 |",
        "",
    ]
    assert " 3 steps of AdamW" in table
