"""bench/tuned.py: a fake libcublasLt multiplies CPU tensors, and its algorithms take simulated time."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_cublaslt import (  # noqa: E402  torch first: without it this file is skipped
    EXECUTION_FAILED,
    INVALID,
    NOT_SUPPORTED,
    FakeAlgorithm,
    FakeCublasLt,
)

from simulated_machine import SimulatedMachine  # noqa: E402
from tilewright.bench import compare, tuned  # noqa: E402
from tilewright.bench.cublaslt import product as views  # noqa: E402
from tilewright.bench.cublaslt.library import Library, Session  # noqa: E402
from tilewright.bench.operands import operand_sets  # noqa: E402
from tilewright.bench.tuned import Search, neighbours, offered, product_of_sets, saved_of  # noqa: E402
from tilewright.errors import LibraryError  # noqa: E402
from tilewright.packing import packed  # noqa: E402
from tilewright.problem import Problem  # noqa: E402
from tilewright.timing import Candidate, interleaved  # noqa: E402

PROBLEM = packed(24, 40, 48)
OWN = (40, 24, 48)  # column-major: rows of out^T, columns, k


def algorithm(number: int, us: float, tile: int = 0, **more: Any) -> FakeAlgorithm:
    more.setdefault("config", (66, tile or number, 1, 0, 0, 0, 35, 0, 3))
    return FakeAlgorithm(number, us, **more)


def tune(
    library: FakeCublasLt, problem: Problem = PROBLEM, search: Search | None = None, machine: Any = None
) -> tuple[dict[str, Any], SimulatedMachine]:
    """The facts of a search, once its column has been launched on every set."""
    machine = machine or SimulatedMachine()
    library.work = lambda name, us: machine.work(name, us)(0)
    sets = operand_sets(problem, 3, device="cpu")
    search = search or Search(workspace_bytes=1 << 16)
    with tuned.tune(problem, sets, machine, 0, search=search, library=Library(library)) as best:
        for index in range(3):
            best.candidate.launch(index)
    for a, b, out in sets:
        assert torch.allclose(out.float(), a.float() @ b.float(), rtol=0.02, atol=0.1)
    assert library.handles == {}
    facts = best.facts()
    assert json.loads(json.dumps(facts)) == facts
    return facts, machine


def library_of(*algorithms: FakeAlgorithm, offers: Any = None, **more: Any) -> FakeCublasLt:
    numbers = [each.number for each in algorithms]
    return FakeCublasLt(list(algorithms), offers or (lambda size: numbers), **more)


# -- neighbours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1, 1), (4096, 16, 512), (4097, 4097, 4096), (8192, 8192, 8192)])
def test_neighbours_are_other_sizes_nearest_first(size: tuple[int, int, int]) -> None:
    found = neighbours(size)
    assert size not in found
    assert len(found) == len(set(found))
    assert all(extent > 0 for other in found for extent in other)
    distances = [tuned._distance(size, other) for other in found]
    assert distances == sorted(distances)
    assert 20 < len(found) < 130


def test_neighbours_are_a_tile_off_halved_doubled_and_rounded_to_tiles() -> None:
    found = set(neighbours((4097, 640, 2048)))
    assert {(4097 + step, 640, 2048) for step in (-256, -128, 128, 256)} <= found
    assert {(4096, 640, 2048), (4224, 640, 2048), (4097, 1280, 2048), (4097, 640, 1024)} <= found
    assert {(8194, 1280, 4096), (8194, 320, 1024), (4104, 640, 2048), (4352, 768, 2048)} <= found


# -- what is offered ---------------------------------------------------------------------------------------------------


def offers_of(library: FakeCublasLt, **options: Any) -> dict[Any, Any]:
    product = product_of_sets(operand_sets(PROBLEM, 2, device="cpu"))
    with Session(Library(library), product, 1 << 16) as session:
        return offered(session, 100, **options)


def test_an_algorithm_that_many_sizes_are_offered_is_one() -> None:
    library = library_of(algorithm(1, 1.0), algorithm(2, 1.0))
    groups = offers_of(library)
    assert [len(twins) for twins in groups.values()] == [1, 1]
    assert library.counts["cublasLtMatmulAlgoCheck"] == 2


def test_heuristics_are_asked_for_the_product_first_with_and_without_workspace_and_for_all_neighbours() -> None:
    library = library_of(algorithm(1, 1.0))
    offers_of(library)
    asked = [(size, wanted[1]) for size, wanted in library.asked]
    assert asked[:2] == [(OWN, 1 << 16), (OWN, 0)]
    assert asked == list(itertools.product([OWN, *neighbours(OWN)], [1 << 16, 0]))
    assert len({tuple(wanted.items())[1:] for _, wanted in library.asked}) == 1, "all with the true alignments"


def test_what_only_a_neighbour_is_offered_counts_when_it_can_run_the_product() -> None:
    first = algorithm(1, 1.0)
    aligned = algorithm(2, 1.0, runs=lambda size: size[0] % 128 == 0)
    general = algorithm(3, 1.0)
    library = library_of(first, aligned, general, offers=lambda size: [1] if size == OWN else [2, 3])
    (one, three) = offers_of(library)
    assert [dict(one)["tile"], dict(three)["tile"]] == [1, 3]


def test_algorithms_of_equal_attributes_are_twins_when_the_library_tells_them_apart() -> None:
    library = library_of(algorithm(1, 1.0, tile=20), algorithm(2, 1.0, tile=20), algorithm(3, 1.0, tile=23))
    assert [len(twins) for twins in offers_of(library).values()] == [2, 1]


def test_a_neighbour_that_the_library_refuses_is_one_neighbour_less() -> None:
    library = library_of(
        algorithm(1, 1.0), heuristic_status=lambda size: INVALID if size[0] == 80 else 0 if size == OWN else 15
    )
    assert len(offers_of(library)) == 1


def test_an_error_for_the_product_itself_is_raised() -> None:
    with pytest.raises(LibraryError, match="INVALID_VALUE"):
        offers_of(library_of(algorithm(1, 1.0), heuristic_status=lambda size: INVALID))


def test_when_it_is_late_the_product_itself_is_still_asked_for() -> None:
    library = library_of(algorithm(1, 1.0))
    assert len(offers_of(library, is_late=lambda: True)) == 1
    assert {size for size, _ in library.asked} == {OWN}


# -- the search --------------------------------------------------------------------------------------------------------


def test_the_fastest_wins_also_when_only_a_neighbour_was_offered_it() -> None:
    algorithms = [algorithm(number, 100.0 + number) for number in range(1, 40)] + [algorithm(99, 80.0)]
    library = library_of(*algorithms, offers=lambda size: list(range(1, 40)) if size == OWN else [99])
    facts, _ = tune(library)
    assert facts["finalists"][0]["us"] == pytest.approx(80.0)
    assert (facts["offered"], facts["tried"], facts["refused"], facts["failed"]) == (40, 40, [], [])
    assert [round(each["us"]) for each in facts["finalists"]] == [80, 101, 102]
    assert facts["library"] == "cuBLASLt 13.1.0"
    assert not facts["from_saved"]
    assert facts["error_over_bound"] <= 1


def test_twins_of_the_best_are_tried_and_those_of_the_slow_are_not() -> None:
    fast = [algorithm(1, 100.0, tile=20), algorithm(2, 90.0, tile=20)]
    others = [algorithm(10 + tile, 200.0 + tile, tile=tile) for tile in range(21, 31)]
    slow = [algorithm(80, 900.0, tile=40), algorithm(81, 1.0, tile=40)]
    facts, _ = tune(library_of(*fast, *others, *slow))
    assert facts["finalists"][0]["us"] == pytest.approx(90.0)
    assert (facts["offered"], facts["tried"]) == (14, 13)


def test_a_wrong_result_is_refused_by_name_and_the_next_best_wins() -> None:
    wrong = algorithm(1, 50.0, config=(66, 20, 1, 0, 0, 0, 35, 0, 3), error=3.0)
    right = algorithm(2, 60.0, config=(66, 23, 1, 0, 0, 0, 35, 0, 5))
    facts, _ = tune(library_of(wrong, right))
    (refusal,) = facts["refused"]
    assert refusal.startswith("128x128 64xAUTO cluster 2x1 id 66: WRONG: ")
    assert facts["algorithm"]["tile"] == "128x256"
    assert [each["what"] for each in facts["finalists"]] == ["128x256 64xAUTO cluster 1x2 id 66"]


def test_when_every_finalist_is_wrong_the_fastest_of_the_others_wins() -> None:
    algorithms = [algorithm(number, 50.0 + number, error=3.0 if number < 8 else 0.0) for number in range(1, 12)]
    facts, _ = tune(library_of(*algorithms))
    assert len(facts["refused"]) == 7
    assert (facts["algorithm"]["tile"], facts["finalists"]) == ("16x32", [])


def test_when_every_result_is_wrong_there_is_no_baseline() -> None:
    with pytest.raises(LibraryError, match=r"no right result: .*WRONG.*WRONG"):
        tune(library_of(algorithm(1, 50.0, error=3.0), algorithm(2, 50.0, error=9.0)))


def test_a_product_that_the_library_does_not_know_has_no_baseline() -> None:
    with pytest.raises(LibraryError, match="no algorithm was offered"):
        tune(library_of(algorithm(1, 50.0), heuristic_status=lambda size: NOT_SUPPORTED))


def test_an_algorithm_that_does_not_launch_is_named_and_left_out() -> None:
    facts, _ = tune(library_of(algorithm(1, 50.0, status=EXECUTION_FAILED), algorithm(2, 60.0)))
    (failure,) = facts["failed"]
    assert "EXECUTION_FAILED" in failure
    assert facts["tried"] == 1


@pytest.mark.parametrize(("us", "seconds"), [(5.0, 1.0), (400.0, 20.0), (13_000.0, 4.0), (13_000.0, 20.0)])
def test_a_search_keeps_to_its_time(us: float, seconds: float) -> None:
    algorithms = [algorithm(number, us * (1 + number / 100)) for number in range(1, 200)]
    facts, machine = tune(library_of(*algorithms), search=Search(seconds=seconds, workspace_bytes=1 << 16))
    assert machine.now_s() < 1.2 * seconds
    assert facts["finalists"][0]["us"] <= us * 1.03


# -- finalists of an earlier run ---------------------------------------------------------------------------------------


@pytest.fixture
def _aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's allocator aligns as it likes; a GPU's does so to 256 bytes or more every time."""
    monkeypatch.setattr(views, "alignment_bytes", lambda *addresses: 256)


@pytest.mark.usefixtures("_aligned")
def test_saved_finalists_are_raced_again_and_nothing_else_is_tried() -> None:
    algorithms = [algorithm(number, 100.0 + number) for number in range(1, 20)]
    first, machine = tune(library_of(*algorithms))
    saved = saved_of([{"candidate": "cublas"}, {"candidate": "cublaslt", "tuned": first}])
    library = library_of(*algorithms)
    again, second_machine = tune(library, search=Search(saved=saved, workspace_bytes=1 << 16))
    assert again["from_saved"]
    assert (again["offered"], again["tried"]) == (3, 3)
    assert again["algorithm"] == first["algorithm"]
    assert library.asked == []
    assert second_machine.now_us < machine.now_us / 2


@pytest.mark.usefixtures("_aligned")
@pytest.mark.parametrize("change", ["version", "product", "gone"])
def test_saved_finalists_of_another_library_or_product_are_not_used(change: str) -> None:
    algorithms = [algorithm(number, 100.0 + number) for number in range(1, 6)]
    facts, _ = tune(library_of(*algorithms))
    if change == "version":
        facts |= {"version": "12.0.0"}
    elif change == "product":
        facts |= {"product": "another"}
    else:
        algorithms = [
            algorithm(number, 100.0 + number, runs=(lambda size: size != OWN) if number <= 3 else (lambda size: True))
            for number in range(1, 6)
        ]
    again, _ = tune(library_of(*algorithms), search=Search(saved=saved_of([{"tuned": facts}]), workspace_bytes=1 << 16))
    assert not again["from_saved"]
    assert again["tried"] == (2 if change == "gone" else 5)


def test_a_products_key_tells_layouts_types_and_alignments_apart() -> None:
    problems = [PROBLEM, packed(24, 40, 56), packed(24, 40, 48, dtype="fp16"), packed(24, 40, 48, out_dtype="fp32")]
    problems += [packed(24, 40, 48, b_major="n")]
    keys = [product_of_sets(operand_sets(problem, 1, device="cpu")).key for problem in problems]
    _, b, out = operand_sets(PROBLEM, 1, device="cpu")[0]
    moved = torch.zeros(24 * 48 + 1, dtype=torch.bfloat16)[1:].view(24, 48)
    keys.append(product_of_sets([(moved, b, out)]).key)
    assert len(set(keys)) == len(keys)


# -- precision, rows ---------------------------------------------------------------------------------------------------


def test_partial_sums_in_outs_type_are_allowed_their_rounding_and_no_more() -> None:
    problem = packed(24, 40, 4096)
    product = product_of_sets(operand_sets(problem, 1, device="cpu"))
    splits = {0: 0.0, 1: 12.0, 2: 0.0, 4: 12.0}  # 2 x 4 roundings of 2^-8 of 6 x 64
    for reduction, allowed in splits.items():
        fake = algorithm(1, 1.0, config=(66, 20, 4, reduction, 0, 0, 35, 0, 3))
        with Session(Library(library_of(fake)), product, 0) as session:
            found = session.checked(fake.blob)
            assert found is not None
            assert tuned.partial_sums(problem, tuned.splits_of(found)) == pytest.approx(allowed)


def test_rows_hold_the_ratio_to_the_tuned_column_of_the_same_rounds() -> None:
    machine = SimulatedMachine()
    names = ((compare.BASELINE, 200.0), (compare.TUNED, 160.0), ("tilewright", 100.0))
    timing = interleaved(machine, [Candidate(name, machine.work(name, us), 3) for name, us in names])
    rows = {row["candidate"]: row for row in compare._rows(timing, None)}
    assert rows["tilewright"]["ratio"] == pytest.approx(2.0)
    assert rows["tilewright"]["ratio_tuned"] == pytest.approx(1.6)
    assert rows[compare.TUNED]["ratio_tuned"] == 1.0
    assert rows[compare.BASELINE]["ratio_tuned"] == pytest.approx(0.8)
    alone = interleaved(machine, [Candidate(name, machine.work(name, us), 3) for name, us in names[::2]])
    assert all("ratio_tuned" not in row for row in compare._rows(alone, None))
