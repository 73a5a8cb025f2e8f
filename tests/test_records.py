"""Records: what is written is found, by any number of processes; what is torn or foreign is passed over, told once."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright import choice, device, records
from tilewright.ampere_config import AmpereConfig
from tilewright.config import Config
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed, packed_named
from tilewright.problem import Problem
from tilewright.records import Record, RecordsWarning, Store

H200 = device.preset("h200")
PROBLEM = packed(4000, 4096, 4096)  # none is shipped of it


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's file of this test, in a folder that is not there yet."""
    path = tmp_path / "data" / "records.jsonl"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    records.clear()
    yield path
    records.clear()


def record(problem: Problem = PROBLEM, num_sms: int | None = None, **changes: object) -> Record:
    fields: dict[str, object] = {
        "key": records.key_of(problem, H200, num_sms),
        "family": "hopper",
        "config": Config(),
        "measured_us": 187.5,
        "predicted_us": 190.25,
        "spread": 0.004,
        "rounds": 9,
        "regime": "interleaved",
        "digest": "0" * 32,
        "compiler": "nvrtc 13.5.37",
        "driver": "13.0",
        "date": "2026-12-01",
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


# -- finding -----------------------------------------------------------------------------------------------------------


def test_without_a_file_there_is_no_record_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert records.lookup(PROBLEM, H200) is None


def test_what_is_appended_is_found_and_the_last_wins() -> None:
    assert records.append(record(measured_us=200.0))
    assert records.append(record(packed(64, 64, 64)))
    assert records.append(record(measured_us=180.0))
    found = records.lookup(PROBLEM, H200)
    assert found is not None
    assert found == record(measured_us=180.0)
    assert [each.measured_us for each in records.user().records()] == [180.0, 187.5]


def test_a_file_that_changes_is_read_again(file: Path) -> None:
    records.append(record(measured_us=200.0))
    assert records.lookup(PROBLEM, H200) == record(measured_us=200.0)
    with file.open("a") as other:
        other.write(record(measured_us=150.0).line() + "\n")
    assert records.lookup(PROBLEM, H200) == record(measured_us=150.0)


OTHER_PROBLEMS = {
    "k": packed(4000, 4096, 4104),
    "input type": packed(4000, 4096, 4096, dtype="fp16"),
    "output type": packed(4000, 4096, 4096, out_dtype="fp32"),
    "layout of b": packed(4000, 4096, 4096, b_major="n"),
    "address of out": dataclasses.replace(PROBLEM, out_align_bytes=2),
    "pitch of out": dataclasses.replace(PROBLEM, out_pitch=4097),
}


@pytest.mark.parametrize("what", OTHER_PROBLEMS)
def test_another_problem_has_another_record(what: str) -> None:
    records.append(record())
    assert records.lookup(OTHER_PROBLEMS[what], H200) is None


def test_a_longer_aligned_pitch_is_the_same_problem() -> None:
    records.append(record())
    assert records.lookup(dataclasses.replace(PROBLEM, a_pitch=8192, out_pitch=4104), H200) == record()


@pytest.mark.parametrize("operand", ["a", "b"])
def test_rows_that_lie_across_lines_are_another_problem(operand: str) -> None:
    """4104 elements from row to row are 64 lines of 128 bytes and 16 bytes, 4112 are 64 and 32."""
    records.append(record())
    across, also = (dataclasses.replace(PROBLEM, **{f"{operand}_pitch": pitch}) for pitch in (4104, 4112))
    assert records.lookup(across, H200) is None
    assert records.key_of(across, H200) == records.key_of(also, H200)


@pytest.mark.parametrize(
    "changes",
    [{"name": "NVIDIA H200 NVL"}, {"num_sms": 114}, {"l2_bytes": 50 << 20}, {"sm": (10, 0)}],
    ids=str,
)
def test_another_device_has_another_record(changes: dict[str, object]) -> None:
    records.append(record())
    assert records.lookup(PROBLEM, dataclasses.replace(H200, **changes)) is None  # type: ignore[arg-type]


def test_fewer_sms_are_another_product_and_all_of_them_the_same() -> None:
    records.append(record())
    records.append(record(num_sms=66))
    assert records.lookup(PROBLEM, H200, 132) == record()
    assert records.lookup(PROBLEM, H200, 66) == record(num_sms=66)
    assert records.lookup(PROBLEM, H200, 67) is None


def test_forgetting_uncovers_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = Store(None, (("h200.jsonl", record(measured_us=300.0).line().encode()),))
    monkeypatch.setattr(records, "shipped", lambda: shipped)
    assert records.lookup(PROBLEM, H200) == record(measured_us=300.0)
    records.append(record())
    assert records.lookup(PROBLEM, H200) == record()
    assert records.forget(record().key)
    assert records.lookup(PROBLEM, H200) == record(measured_us=300.0)
    assert list(records.user().records()) == []
    records.append(record(measured_us=170.0))
    assert records.lookup(PROBLEM, H200) == record(measured_us=170.0)


# -- files of others, and damage ---------------------------------------------------------------------------------------

JUNK = [
    b"not json",
    b'{"key": "torn',
    b'{"schema": 1}',
    b"[1, 2]",
    b"\xff\xfe\x00",
    record().line().encode()[:200],
    record().line().encode().replace(b'"tile_m"', b'"tile_q"'),
    record().line().encode().replace(b'"schema": 1', b'"schema": 99'),
    record().line().encode().replace(b"187.5", b'"fast"'),
    record().line().encode().replace(b"187.5", b"NaN"),
    record().line().encode().replace(b'"interleaved"', b'"asleep"'),
    record().line().encode().replace(b'"rounds": 9', b'"rounds": true'),
    record().line().encode().replace(b'"date"', b'"day"'),
    b'{"key": "' + record().key.encode() + b'", "config": ' + b"[" * 100_000,
    b'{"key": "' + record().key.encode() + b'", "forgotten": true, "config": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:40]))
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_line_that_is_no_record_is_passed_over_with_one_warning(file: Path, junk: bytes, place: str) -> None:
    file.parent.mkdir()
    good = record().line().encode()
    file.write_bytes(b"\n".join([junk, good] if place == "before" else [good, junk]) + b"\n")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            assert records.lookup(PROBLEM, H200) == record()
            list(records.user().records())
    assert len(told) <= 1
    if place == "after":
        assert [warning.category for warning in told] == [RecordsWarning]
        assert str(file) in str(told[0].message)


def test_a_record_behind_a_torn_line_is_found(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(record(packed(8, 8, 8)).line().encode()[:150] + record().line().encode() + b"\n")
    with pytest.warns(RecordsWarning):
        assert records.lookup(PROBLEM, H200) == record()


def test_a_writer_that_finds_a_torn_line_begins_a_new_one(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b'{"key": "torn')
    records.append(record())
    assert file.read_bytes().splitlines() == [b'{"key": "torn', record().line().encode()]


def test_a_file_that_cannot_be_read_is_told_once_and_no_more(file: Path) -> None:
    file.mkdir(parents=True)  # a folder in the file's place; rights would not keep root out
    with pytest.warns(RecordsWarning, match="cannot be read"):
        assert records.lookup(PROBLEM, H200) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert records.lookup(PROBLEM, H200) is None


def test_a_pipe_in_the_file_s_place_is_neither_waited_for_nor_written_to(file: Path) -> None:
    """Opening one to read waits for a writer, and that for ever."""
    file.parent.mkdir()
    os.mkfifo(file)
    with pytest.warns(RecordsWarning, match=r"cannot be read \(it is no regular file\).*let TILEWRIGHT_RECORDS name"):
        assert records.lookup(PROBLEM, H200) is None
    with pytest.warns(RecordsWarning, match=r"cannot be written \(it is no regular file\)"):
        assert not records.append(record())


def test_a_folder_that_cannot_be_written_is_a_warning_with_the_remedy(file: Path) -> None:
    file.parent.touch()  # a file in the folder's place
    with pytest.warns(RecordsWarning, match="cannot be written.*TILEWRIGHT_RECORDS"):
        assert not records.append(record())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert records.lookup(PROBLEM, H200) is None


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv("TILEWRIGHT_RECORDS")
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: "~/.local/share/tilewright")
    assert records.lookup(PROBLEM, H200) is None
    with pytest.warns(RecordsWarning, match="no home"):
        assert not records.append(record())


# -- many processes ----------------------------------------------------------------------------------------------------

WRITERS, EACH = 8, 50


def write_many(path: str, writer: int) -> None:
    """A child's work: records of sizes that nobody else writes."""
    store = Store(Path(path))
    for index in range(EACH):
        store.append(record(packed(1 + writer, 8, 8 * (1 + index))).line())


def test_what_eight_processes_write_at_once_is_all_there(file: Path) -> None:
    """B106; a file that is garbage, old or edited by hand: JUNK, above."""
    spawn = multiprocessing.get_context("spawn")
    children = [spawn.Process(target=write_many, args=(str(file), writer)) for writer in range(WRITERS)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * WRITERS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {each.problem for each in records.user().records()}
    assert found == {
        records.problem_text(packed(1 + writer, 8, 8 * (1 + index)))
        for writer in range(WRITERS)
        for index in range(EACH)
    }
    assert len(file.read_bytes().splitlines()) == WRITERS * EACH


# -- cost --------------------------------------------------------------------------------------------------------------


def fastest_us(work: Callable[[Problem], object], problems: list[Problem]) -> float:
    """Microseconds of the fastest of many calls: the rest is other work on the machine."""
    times = []
    for problem in problems:
        start = time.perf_counter()
        assert work(problem) is not None
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def test_a_lookup_among_ten_thousand_records_costs_about_what_parsing_one_line_does(file: Path) -> None:
    """33 us and 5.5 us on 2 cores of x86-64, 2026-11-30. A ratio, since a loaded machine is slower at both."""
    file.parent.mkdir()
    problems = [packed(8 + index // 100, 8, 8 * (1 + index % 100)) for index in range(10_000)]
    lines = [record(problem).line() for problem in problems]
    file.write_text("".join(line + "\n" for line in lines))
    assert records.lookup(problems[0], H200) is not None  # reads the file
    sample = problems[::50]
    parse_us = fastest_us(lambda problem: json.loads(lines[0]), sample)
    lookup_us = fastest_us(lambda problem: records.lookup(problem, H200), sample)
    assert lookup_us < 15 * parse_us, (lookup_us, parse_us)


# -- round trip --------------------------------------------------------------------------------------------------------

CONFIGS = st.builds(
    Config,
    tile_m=st.sampled_from([64, 128, 256]),
    tile_n=st.integers(1, 32).map(lambda units: 8 * units),
    stages=st.integers(2, 16),
    schedule=st.sampled_from(["linear", "grouped"]),
    pingpong=st.booleans(),
    tail_n=st.sampled_from([0, 64, 104]),
    staggered=st.booleans(),
)
FLOATS = st.floats(0, 1e12, allow_nan=False)
RECORDS = st.builds(
    Record,
    key=st.lists(st.text(max_size=30), min_size=3, max_size=3)
    .map(" | ".join)
    .filter(lambda key: key.count(" | ") == 2),
    family=st.text(max_size=10).filter(lambda name: name != AmpereConfig.family),  # its configs are of another kind
    config=CONFIGS,
    measured_us=FLOATS,
    predicted_us=FLOATS,
    spread=FLOATS,
    rounds=st.integers(0, 1000),
    regime=st.sampled_from(records.REGIMES),
    digest=st.text(max_size=32),
    compiler=st.text(max_size=30),
    driver=st.text(max_size=10),
    date=st.dates().map(str),
)


@given(RECORDS)
def test_any_record_comes_back_from_its_line(each: Record) -> None:
    assert records.record_of(each.line()) == each
    assert "\n" not in each.line()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(RECORDS, min_size=1, max_size=5), st.binary(max_size=40))
def test_any_records_are_found_by_their_keys_whatever_a_torn_writer_left(
    file: Path, many: list[Record], torn: bytes
) -> None:
    file.unlink(missing_ok=True)
    records.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in many:
            assert records.append(each)
            with file.open("ab") as damaged:
                damaged.write(torn)
        last = {each.key: each for each in many}
        assert {key: records.user().lookup(key) for key in last} == last


# -- shipped -----------------------------------------------------------------------------------------------------------


def test_an_empty_shipped_file_holds_no_records() -> None:
    assert list(Store(None, (("empty.jsonl", b""),)).records()) == []
    assert Store(None, ()).lookup("anything") is None


def test_every_shipped_line_is_a_record_of_a_legal_config_that_its_product_finds() -> None:
    folder = resources.files("tilewright") / "data" / "records"
    assert (folder / "h200.jsonl").is_file()
    for item in folder.iterdir():
        target = device.preset(item.name.removesuffix(".jsonl"))
        for line in item.read_text().splitlines():
            each = records.record_of(line)
            problem = packed_named(each.problem)  # all of them are packed, so far
            assert json.loads(line)["key"] == each.key == records.key_of(problem, target)
            assert choice.reasons_against(each, problem, target, None) == ()


def test_every_shipped_record_knows_the_kernel_as_it_is() -> None:
    """Where a kernel's text has changed and its machine code has not, tools/same_code.py gives it the new digest."""
    target = device.preset("h200")
    for line in (resources.files("tilewright") / "data" / "records" / "h200.jsonl").read_text().splitlines():
        each = records.record_of(line)
        assert not choice.is_stale(each, HOPPER, packed_named(each.problem), target), f"{each.problem} is a hint"


# -- the choice --------------------------------------------------------------------------------------------------------


def measured(**changes: object) -> Record:
    """A record of the kernel as it is, with a config that the model does not choose."""
    config = Config(tile_n=128, stages=5)
    digest = choice.kernel_digest(HOPPER, PROBLEM, config, H200)
    return record(**({"config": config, "digest": digest} | changes))


def test_a_record_is_the_choice_and_says_so() -> None:
    records.append(measured())
    chosen = choice.choose(PROBLEM, H200)
    assert (chosen.config, chosen.record) == (Config(tile_n=128, stages=5), measured())
    assert chosen.why == (
        "from records: measured 187.5 us on NVIDIA H200, 2026-12-01 (interleaved, 9 rounds, spread 0.4%)"
    )


def test_a_record_of_another_kernel_source_is_a_hint_and_says_so() -> None:
    records.append(measured(digest="f" * 32))
    chosen = choice.choose(PROBLEM, H200)
    assert chosen.config == Config(tile_n=128, stages=5)
    assert chosen.why.startswith("from records, a hint only: the kernel has changed since: measured 187.5 us")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": Config(tile_n=256, stages=9)}, "bytes of shared memory"),
        ({"config": Config(stages=True)}, "is not a whole number"),
        ({"family": "ampere"}, "the ampere family is not the one that "),
        ({"family": "v11_hilbert"}, "no production family 'v11_hilbert'"),
    ],
    ids=str,
)
def test_a_record_that_cannot_run_leaves_the_choice_to_the_model_and_says_so(
    changes: dict[str, object], words: str
) -> None:
    records.append(record(**changes))
    chosen = choice.choose(PROBLEM, H200)
    assert chosen.record is None
    assert chosen.why.startswith("untuned: the model's choice: ")
    assert words in chosen.why


def test_a_cluster_wider_than_the_sms_that_are_left_is_no_choice() -> None:
    records.append(measured(config=Config(cluster_m=2), num_sms=1))
    assert "fewer than the 2 CTAs" in choice.choose(PROBLEM, H200, 1).why


def test_records_are_turned_off_by_the_argument_and_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    records.append(measured())
    assert choice.choose(PROBLEM, H200, use_records=False).record is None
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "0")
    assert choice.choose(PROBLEM, H200).record is None


# -- one order of summation --------------------------------------------------------------------------------------------

IN_ORDER = Config(tile_n=128, stages=5)
BACK = IN_ORDER.replace(k_back_and_forth=True)


def invariant(config: Config = IN_ORDER, **changes: object) -> Record:
    return record(key=records.key_of(PROBLEM, H200, reduction="invariant"), config=config, **changes)


def test_a_record_of_an_invariant_product_is_kept_apart_from_the_fast_one() -> None:
    records.append(invariant(measured_us=190.0))
    assert records.lookup(PROBLEM, H200) is None
    records.append(record(config=BACK))
    assert records.lookup(PROBLEM, H200) == record(config=BACK)
    assert records.lookup(PROBLEM, H200, reduction="invariant") == invariant(measured_us=190.0)
    assert invariant().sms == "all SMs, invariant"


@pytest.mark.parametrize("own", ["none", "in another order", "forgotten"])
def test_an_invariant_product_takes_a_fast_record_where_that_adds_in_its_order_and_never_another(own: str) -> None:
    if own == "in another order":  # edited by hand, or written when the order was another
        records.append(invariant(BACK))
    elif own == "forgotten":
        records.append(invariant())
        records.forget(invariant().key)
    assert records.lookup(PROBLEM, H200, reduction="invariant") is None
    records.append(record(config=BACK))
    assert records.lookup(PROBLEM, H200, reduction="invariant") is None
    assert choice.choose(PROBLEM, H200, reduction="invariant").record is None
    records.append(measured())
    assert choice.choose(PROBLEM, H200, reduction="invariant").record == measured()
