"""Each script of examples/ at its small size. Three in the emulator; of the others the products are NumPy's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_a_patched_block_is_torchs_within_rounding(example: Any, capsys: Any) -> None:
    """In the emulator: seven layers, forward and backward."""
    assert example("patch_model").main([]) < 0.05
    assert "7 of 7 linear modules run on tilewright" in capsys.readouterr().out


def test_numpy_arrays_are_multiplied(example: Any) -> None:
    assert example("other_arrays").main([]) == ["NumPy", "NumPy's bf16"]


def test_a_gated_mlp_and_an_epilogue_are_torchs_within_rounding(example: Any) -> None:
    """In the emulator: three layers, forward and of two of them backward."""
    assert example("gated_mlp").main([]) < 0.05


@pytest.mark.usefixtures("fast")
def test_training_with_gradients_collected_in_fp32_lowers_the_loss(example: Any) -> None:
    losses = example("train").main([])
    assert losses == sorted(losses, reverse=True)


@pytest.mark.usefixtures("fast")
def test_a_patched_model_compiles_to_one_graph(example: Any) -> None:
    torch._dynamo.reset()
    assert example("compile_model").main([]) == 1


@pytest.mark.usefixtures("fast")
def test_the_step_that_a_gpu_captures_runs_here_without_a_graph(example: Any) -> None:
    assert example("cuda_graph").main([]).shape == (1, 1, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["patch_model", "gated_mlp", "train", "compile_model", "cuda_graph", "other_arrays"])
def test_every_example_runs_on_a_gpu_at_its_real_size(example: Any, name: str) -> None:
    torch._dynamo.reset()
    found = example(name).main(["--gpu"])
    if name in ("patch_model", "gated_mlp"):
        assert found < 0.05
    if name == "train":
        assert found == sorted(found, reverse=True)
