"""bench/compare.py on CPU tensors and simulated time: its columns, verdicts and refusals."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_cublaslt import FakeAlgorithm, FakeCublasLt  # noqa: E402  torch first: without it this file is skipped

from simulated_machine import SimulatedMachine  # noqa: E402
from tilewright.bench import compare as module  # noqa: E402
from tilewright.bench import tuned  # noqa: E402
from tilewright.bench.cublaslt.library import Library  # noqa: E402
from tilewright.bench.operands import operand_sets  # noqa: E402
from tilewright.bench.tuned import Search  # noqa: E402
from tilewright.config import Config  # noqa: E402
from tilewright.errors import ConfigError, LayoutError, UnsupportedError  # noqa: E402
from tilewright.packing import packed  # noqa: E402

PROBLEM = packed(24, 40, 48)


class FakePlan:
    """A plan whose product takes 100 us; `error` is added to it."""

    config = "128x256"
    binary = SimpleNamespace(compiler="nvrtc")
    launch = SimpleNamespace(grid=66)
    device = SimpleNamespace(num_sms=132)
    prediction = SimpleNamespace(waves=0.5)

    def __init__(self, machine: SimulatedMachine, error: float = 0.0) -> None:
        self.work = machine.work("own", 100.0)
        self.error = error

    def run(self, a: Any, b: Any, out: Any) -> None:
        self.work(0)
        out.copy_((a.float() @ b.float()) + self.error)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimulatedMachine:
    """A device of simulated time: cuBLAS takes 200 us, cuBLASLt's best 160, tilewright 100."""
    clock = SimulatedMachine()
    clock.stream = 0  # type: ignore[attr-defined]

    @contextmanager
    def opened(*_: Any) -> Any:
        yield clock

    def matmul(a: Any, b: Any, out: Any) -> None:
        clock.work("cublas", 200.0)(0)
        out.copy_(a.float() @ b.float())

    library = FakeCublasLt([FakeAlgorithm(1, 170.0), FakeAlgorithm(2, 160.0)], lambda size: [1, 2])
    library.work = lambda name, us: clock.work(name, us)(0)
    cuda = SimpleNamespace(
        device=nullcontext, synchronize=lambda: None, stream=nullcontext, ExternalStream=lambda *_, **__: None
    )
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda, matmul=matmul))
    monkeypatch.setattr(module, "backend", lambda: SimpleNamespace(device=lambda _: SimpleNamespace(l2_bytes=4096)))
    monkeypatch.setattr(module, "CudaMachine", opened)
    monkeypatch.setattr(module, "operand_sets", lambda p, n, seed, device: operand_sets(p, n, seed=seed, device="cpu"))
    monkeypatch.setattr(module, "make_plan", lambda *_, **__: FakePlan(clock))
    monkeypatch.setattr(tuned, "installed", lambda: Library(library))
    return clock


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["candidate"]: row for row in rows}


def test_every_column_is_timed_in_one_run_and_its_ratios_are_to_both_baselines(machine: SimulatedMachine) -> None:
    search = Search(workspace_bytes=1 << 12)
    rows = by_name(module.compare(PROBLEM, named={"tilewright recorded": Config()}, tuned=search, checked=True))
    assert list(rows) == ["cublas", "tilewright", "tilewright recorded", "cublaslt"]
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["tilewright"]["ratio"] == pytest.approx(2.0)
    assert rows["tilewright recorded"]["ratio_tuned"] == pytest.approx(1.6)
    assert rows["cublaslt"]["ratio"] == pytest.approx(1.25)
    assert rows["cublaslt"]["tuned"]["tried"] == 2
    assert [rows["tilewright"][name] for name in ("ctas", "num_sms", "waves")] == [66, 132, 0.5]
    assert rows["cublaslt"]["compiler"] == "cuBLASLt 13.1.0"
    assert all(row["error_over_bound"] <= 1 for row in rows.values())
    assert {(row["data"], row["is_cold"], row["num_sets"]) for row in rows.values()} == {("normal", True, 4)}


def test_every_row_has_its_ratio_to_the_column_that_is_named_beside_and_none_where_that_was_not_had(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = by_name(module.compare(PROBLEM, named={"other": Config()}, beside="tilewright"))
    assert rows["other"]["ratio_beside"] == rows["other"]["ratio_beside_lower"] == pytest.approx(1.0)
    assert rows["cublas"]["ratio_beside"] == pytest.approx(0.5)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError("c", ["why"])

    monkeypatch.setattr(module, "make_plan", refuse)
    rows = by_name(module.compare(PROBLEM, beside="tilewright", checked=True))
    assert rows["cublas"]["median_us"] == pytest.approx(200.0)
    assert all("ratio_beside" not in row for row in rows.values())


def test_a_named_column_without_a_config_is_the_models_choice_whatever_is_recorded(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def make_plan(*_: Any, **options: Any) -> FakePlan:
        asked.append(options)
        return FakePlan(machine)

    monkeypatch.setattr(module, "make_plan", make_plan)
    module.compare(PROBLEM, configs=(None,), named={"untuned": None})
    assert [(each["config"], each.get("use_records", True)) for each in asked] == [(None, True), (None, False)]


def test_without_checks_rows_are_as_they_were(machine: SimulatedMachine) -> None:
    rows = module.compare(PROBLEM)
    assert [row["candidate"] for row in rows] == ["cublas", "tilewright"]
    assert all("status" not in row and "ratio_tuned" not in row for row in rows)


def test_a_wrong_product_is_a_row_that_says_so(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_plan", lambda *_, **__: FakePlan(machine, error=5.0))
    rows = by_name(module.compare(PROBLEM, checked=True))
    assert rows["cublas"]["status"] == "ok"
    assert rows["tilewright"]["status"] == "wrong"
    assert rows["tilewright"]["why"].startswith("WRONG: ")


@pytest.mark.parametrize(
    "error", [LayoutError("a", "rows of 15 bytes", "pad"), ConfigError("c", ["why"]), UnsupportedError("a", "b", "c")]
)
def test_a_column_that_is_refused_costs_its_own_rows(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "make_plan", refuse)
    rows = by_name(module.compare(PROBLEM, modes=("interleaved",), checked=True))
    assert rows["cublas"]["status"] == "ok"
    assert rows["tilewright"]["status"] == "refused"
    assert rows["tilewright"]["why"].startswith(type(error).__name__)
    assert "median_us" not in rows["tilewright"]
    assert rows["tilewright"]["m"] == 24
    with pytest.raises(type(error)):
        module.compare(PROBLEM)


def test_operands_that_stay_in_the_l2_are_named(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backend", lambda: SimpleNamespace(device=lambda _: SimpleNamespace(l2_bytes=1 << 20)))
    monkeypatch.setattr(module, "num_cold_sets", lambda *_: 4)
    assert {row["is_cold"] for row in module.compare(PROBLEM, checked=True)} == {False}


@pytest.mark.parametrize(("dtype", "out_dtype"), [("bf16", "fp16"), ("fp16", "bf16"), ("tf32", "bf16")])
def test_a_type_that_cublas_does_not_write_is_copied_from_its_fp32_sums(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch, dtype: str, out_dtype: str
) -> None:
    """Into the set that is called for, rounded once."""
    fake, asked = module.torch, []

    def multiply(a: Any, b: Any, kind: Any, out: Any) -> None:
        asked.append((kind, out.dtype))
        fake.matmul(a, b, out)

    aten = SimpleNamespace(mm=SimpleNamespace(dtype_out=multiply))
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)))
    monkeypatch.setattr(fake, "ops", SimpleNamespace(aten=aten), raising=False)
    monkeypatch.setattr(fake, "backends", backends, raising=False)
    problem = packed(24, 40, 48, dtype=dtype, out_dtype=out_dtype)
    sets = operand_sets(problem, 2, seed=0, device="cpu")
    before = sets[0][2].clone()
    module._cublas(problem, sets)(1)
    a, b, out = sets[1]
    assert torch.equal(out, (a.float() @ b.float()).to(out.dtype))
    assert asked == ([] if dtype == "tf32" else [(torch.float32, torch.float32)])
    assert torch.equal(sets[0][2].view(torch.int16), before.view(torch.int16))
