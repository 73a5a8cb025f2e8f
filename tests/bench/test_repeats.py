"""bench/repeats.py: which products are repeated, and that a run that differs in one bit anywhere is found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tilewright import device
from tilewright.bench import check_report, repeats
from tilewright.bench.cases import FORMS
from tilewright.kernels.ladder import RUNGS
from tilewright.packing import packed

H200 = device.preset("h200")


def test_every_form_and_every_rung_is_repeated_and_none_of_the_products_is_refused() -> None:
    groups = repeats.groups()
    assert set(groups) == {"model", *FORMS, "split-short", "ladder"}
    for each in (each for group in groups.values() for each in group):
        assert each.violations(H200) == (), each.described()
    for name, config in FORMS.items():
        assert {each.config for each in groups[name]} == {config}
    assert Counter(each.rung.name for each in groups["ladder"] if each.rung) == {rung.name: 2 for rung in RUNGS}


@pytest.mark.parametrize("group", ["model", *FORMS])
def test_a_group_has_large_ragged_and_odd_products_stored_in_both_ways(group: str) -> None:
    problems = [each.problem for each in repeats.groups()[group]]
    assert any((problem.m, problem.n, problem.k) == (8192, 8192, 8192) for problem in problems)
    assert any(
        problem.m % 64 and problem.n % 8 == 0 and problem.k % 64 and problem.out_through_tma for problem in problems
    )
    assert any(problem.n % 2 and not problem.out_through_tma for problem in problems)
    assert any(problem.m == 4097 for problem in problems)
    assert {problem.b_major for problem in problems} == {"k", "n"}


def test_short_splits_have_few_k_tiles_a_cta_in_every_split_swapped_and_not_with_one_consumer_and_two() -> None:
    configs = [(each.config, each.problem) for each in repeats.groups()["split-short"]]
    assert {(config.split_k, config.swap, config.consumers) for config, _ in configs if config} == {
        (split_k, swap, consumers) for split_k in (2, 4, 8) for swap in (False, True) for consumers in (1, 2)
    }
    assert all(config and problem.k <= 520 for config, problem in configs)
    assert any((problem.m, problem.n, problem.k) == (4097, 8200, 520) for _, problem in configs)  # whose bits differed


def test_forms_are_staggered_tail_pingpong_and_both_clusters() -> None:
    assert FORMS["staggered"].staggered
    assert FORMS["tail"].tail_n == 128
    assert FORMS["staggered-tail"].staggered
    assert FORMS["staggered-tail"].tail_n == 64
    assert FORMS["pingpong"].pingpong
    assert (FORMS["cluster-2x1"].cluster_m, FORMS["cluster-2x1"].cluster_n) == (2, 1)
    assert (FORMS["cluster-1x2"].cluster_m, FORMS["cluster-1x2"].cluster_n) == (1, 2)


def test_every_kernel_can_be_built_elsewhere_and_a_plan_uses_that_very_unit() -> None:
    wanted = {source.digest("") for source in repeats.sources(H200)}
    for group in ("model", "tail", "ladder"):
        each = repeats.groups()[group][0]
        plan = each.plan(H200, lambda: pytest.fail("no backend is needed"))
        source = repeats.render(plan.family, plan.problem, plan.config, H200)
        assert source.digest("") in wanted


def test_the_table_has_a_line_a_config_with_how_many_runs_differed() -> None:
    rows = [each.described() | {"status": "ok", "repeats": 100} for each in repeats.groups()["tail"]]
    rows = [row | {"differing": 3 if row["m"] == 4097 else 0} for row in [*rows, rows[0] | {"config": "other"}]]
    lines = check_report.repeats_table([*rows, {"kind": "repeats", "status": "skipped", "config": "x"}]).splitlines()
    assert lines[2].startswith(f"| {FORMS['tail']} | 8 | 800 | 6 | 8192 x 8192 x 8192, 8191 x 8184 x 8190, ")
    assert lines[3] == "| other | 1 | 100 | 0 | 8192 x 8192 x 8192 |"
    assert "bit for bit" in lines[5]


class Runs:
    """A kernel that writes 1.5 into out, but for what `spoil` does in run `index`; run 0 is the first."""

    def __init__(self, spoil: dict[int, Any]) -> None:
        self.spoil = spoil
        self.count = 0

    def __call__(self, out: Any) -> None:
        assert bool((out != out).all()), "out is poisoned before each run"
        out.fill_(1.5)
        self.spoil.get(self.count, lambda out: None)(out)
        self.count += 1


def negative_zero(out: Any) -> None:
    out[3, 4] = -0.0


def zero(out: Any) -> None:
    out[3, 4] = 0.0


def beside(out: Any) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + out.numel() + 7).fill_(2.0)


def unwritten(out: Any) -> None:
    out[0, 0] = float("nan")


def test_a_run_that_differs_anywhere_is_named() -> None:
    torch = pytest.importorskip("torch")
    from tilewright.bench.operands import Canary  # torch

    def differing(spoil: dict[int, Any], repeats_: int = 9) -> list[int]:
        first, again = (Canary.around(packed(5, 7, 8), device="cpu") for _ in range(2))
        runs = Runs(spoil)
        found = repeats.differing(runs, first, again, repeats_)
        assert runs.count == repeats_ + 1
        assert torch.equal(first.out, torch.full_like(first.out, 1.5)) or 0 in spoil
        return found

    assert differing({}) == []
    assert differing({4: zero}) == [4]
    assert differing({2: beside, 9: unwritten}) == [2, 9]
    assert differing(dict.fromkeys(range(10), zero) | {5: negative_zero}) == [5]
    assert differing({0: zero}) == list(range(1, 10))
