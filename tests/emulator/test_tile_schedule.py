"""The walk of schedule.cuh, run from its own PTX, against a plain model of it and against the host's counts.

Every element of out lies in one tile, in one of some CTA's places; the counts that Config gives the model and the
kernel are those that the CTAs come to. A CTA's first tile, which it finds by a shorter way, is its tile number 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from gemm import Edit, edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from products import H200

from tilewright.backends.base import IntArgument
from tilewright.config import Config
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.jit import nvrtc
from tilewright.jit.source import Source
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import device_code
from tilewright.packing import packed
from tilewright.problem import Problem

ROOM = 64  # tiles that one CTA of the probe may list, each kind
WALK = ("m", "n", "group_m", "square_m", "square_n", "num_wide", "row_scale")

# One thread a CTA: how many tiles of each kind it has, then where each begins, and last its first tile by first().
PROBE = """
#include "schedule.cuh"
constexpr int ROOM = 64;
extern "C" __global__ void probe(int32_t* out, int32_t m, int32_t n, int32_t group_m, int32_t square_m,
                                 int32_t square_n, int32_t num_wide, int32_t row_scale) {
    const TileSchedule schedule(m, n, Walk{group_m, square_m, square_n, num_wide}, blockIdx.x % Config::CLUSTER);
    int32_t* own = out + blockIdx.x * (4 + 4 * ROOM);
    own[0] = schedule.num_wide();
    own[1] = schedule.num_narrow();
    for (uint32_t i = 0; i < schedule.num_wide(); ++i) {
        const Tile tile = schedule.wide(i);
        own[2 + 2 * i] = tile.m;
        own[3 + 2 * i] = tile.n;
    }
    for (uint32_t i = 0; i < schedule.num_narrow(); ++i) {
        const Tile tile = schedule.narrow(i);
        own[2 + 2 * ROOM + 2 * i] = tile.m;
        own[3 + 2 * ROOM + 2 * i] = tile.n;
    }
    if (schedule.has_wide(0)) {
        const Tile tile = schedule.first(row_scale);
        own[2 + 4 * ROOM] = tile.m;
        own[3 + 4 * ROOM] = tile.n;
    }
}
"""

Places = list[tuple[int, int]]  # first row, first column


@dataclass(frozen=True)
class Walked:
    """Tiles of each CTA in its order."""

    wide: list[Places]
    narrow: list[Places]
    first: list[Places]  # of the wide ones, or none


@cache
def ptx(tile_n: int, tail_n: int, cluster_m: int, cluster_n: int, *edits: Edit) -> str:
    """The probe's, `edits` made; what else a walk depends on comes at run time."""
    config = Config(
        tile_m=64, tile_n=tile_n, stages=2, consumers=1, tail_n=tail_n, cluster_m=cluster_m, cluster_n=cluster_n
    )
    headers = {**device_code(), **HOPPER.headers(packed(64, 64, 64), config)}
    used = ("base.cuh", "config.cuh", "schedule.cuh")
    unit = Source(
        name="probe", text=PROBE, headers=tuple((path, headers[path]) for path in used), entry="probe", arch=H200.arch
    )
    for edit in edits:
        unit = edited(unit, *edit)
    return nvrtc.compile_source(unit, "").ptx


def parameters(problem: Problem, config: Config, num_sms: int) -> tuple[int, dict[str, int]]:
    """(grid, what the host passes of the walk)."""
    launch = HOPPER.launch(problem, config, H200, num_sms)
    found = {
        argument.name: argument.value
        for argument in HOPPER.arguments(problem, config, launch)
        if isinstance(argument, IntArgument)
    }
    return launch.grid, {name: found[name] for name in WALK}


def on_the_device(problem: Problem, config: Config, num_sms: int, *edits: Edit) -> Walked:
    """What the PTX comes to."""
    grid, walk = parameters(problem, config, num_sms)
    memory = GlobalMemory()
    out = np.full((grid, 4 + 4 * ROOM), -1, np.int32)
    values = [memory.add("out", out), *walk.values()]
    run(
        ptx(config.tile_n, config.tail_n, config.cluster_m, config.cluster_n, *edits),
        "probe",
        Grid(grid=grid, block=1),
        values,
        memory,
    )

    def places(row: np.ndarray, first: int, count: int) -> Places:
        return [(int(m), int(n)) for m, n in row[first : first + 2 * count].reshape(-1, 2)]

    return Walked(
        [places(row, 2, row[0]) for row in out],
        [places(row, 2 + 2 * ROOM, row[1]) for row in out],
        [places(row, 2 + 4 * ROOM, min(row[0], 1)) for row in out],
    )


def modelled(problem: Problem, config: Config, num_sms: int) -> Walked:
    """The same as lists: all places of the walk in order, dealt to the CTAs in turn."""
    grid, walk = parameters(problem, config, num_sms)
    cm, cn = config.cluster_m, config.cluster_n
    tile_rows, tile_columns = config.tiles(problem)
    rows, columns = tile_rows // cm, tile_columns // cn
    full, further = (divmod(walk["num_wide"], rows)) if config.tail_n else (columns, 0)
    order = []
    for group in range(0, rows, walk["group_m"]):
        group_end = min(group + walk["group_m"], rows)
        for left in range(0, full, walk["square_n"]):
            for top in range(group, group_end, walk["square_m"]):
                for column in range(left, min(left + walk["square_n"], full)):
                    order += [(row, column) for row in range(top, min(top + walk["square_m"], group_end))]
    order += [(row, full) for row in range(further)]
    narrow = []
    if config.tail_n:
        for row in range(rows):
            left = (full + (row < further)) * config.tile_n
            narrow += [(row * config.tile_m, column) for column in range(left, problem.n, config.tail_n)]

    def in_cluster(place: tuple[int, int], rank: int) -> tuple[int, int]:
        row, column = place
        return (row * cm + rank % cm) * config.tile_m, (column * cn + rank // cm) * config.tile_n

    clusters = grid // config.cluster
    ctas = [divmod(cta, config.cluster) for cta in range(grid)]
    wide = [[in_cluster(place, rank) for place in order[cluster::clusters]] for cluster, rank in ctas]
    return Walked(wide, [narrow[cluster::clusters] for cluster, _ in ctas], [own[:1] for own in wide])


def assert_all_of_out_once(problem: Problem, config: Config, walked: Walked) -> None:
    covered = np.zeros((problem.m, problem.n), np.int8)
    for ctas, width in ((walked.wide, config.tile_n), (walked.narrow, config.tail_n)):
        for m, n in (place for places in ctas for place in places):
            covered[m : m + config.tile_m, n : n + width] += 1
    assert (covered == 1).all(), np.argwhere(covered != 1)[:3]


def assert_counts_agree(problem: Problem, config: Config, num_sms: int, walked: Walked) -> None:
    grid, _ = parameters(problem, config, num_sms)
    wide = config.wide_tiles(problem, grid)
    assert sum(map(len, walked.wide)) == wide
    assert sum(map(len, walked.narrow)) == (config.narrow_tiles(problem, wide) if config.tail_n else 0)
    busiest = (max(map(len, walked.wide)), max(map(len, walked.narrow)))
    assert busiest == config.waves(problem, grid)


@st.composite
def walks(draw: st.DrawFn) -> tuple[Problem, Config, int]:
    """Few kernels, any shape and grid; sizes about whole tiles and clusters."""
    tile_n, tail_n, cluster_m, cluster_n = draw(
        st.sampled_from([(64, 0, 1, 1), (64, 24, 1, 1), (24, 8, 1, 1), (64, 0, 2, 1), (64, 0, 1, 2), (24, 0, 4, 2)])
    )
    config = Config(
        tile_m=64,
        tile_n=tile_n,
        stages=2,
        consumers=1,
        tail_n=tail_n,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        schedule=draw(st.sampled_from(["grouped", "grouped", "linear"])),
        group_m=draw(st.integers(1, 6)),
        square=draw(st.integers(0, 5)),
    )
    m = max(1, draw(st.integers(1, 8)) * 64 - draw(st.sampled_from([0, 1, 63])))
    n = draw(st.integers(1, 7 * tile_n))
    return packed(m, n, 64), config, draw(st.integers(config.cluster, 13))


@settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(walk=walks())
def test_the_device_walks_as_the_model_and_covers_out_once(walk: tuple[Problem, Config, int]) -> None:
    walked = on_the_device(*walk)
    assert walked == modelled(*walk)
    problem, config, num_sms = walk
    assert_all_of_out_once(problem, config, walked)
    assert_counts_agree(problem, config, num_sms, walked)


_WALK = Config(tile_m=64, tile_n=64, stages=2, consumers=1, group_m=2)
# Walks by whether all of out is one square: of one column, of one row, of one group; in groups, in squares, a tail.
ONE_SQUARE = [
    (packed(7 * 64, 40, 64), _WALK, 5),
    (packed(40, 7 * 64, 64), _WALK, 6),
    (packed(3 * 64, 4 * 64, 64), _WALK.replace(schedule="linear"), 11),
    (packed(2 * 64, 5 * 64, 64), _WALK.replace(square=5), 9),
    (packed(5 * 64, 3 * 64, 64), _WALK.replace(cluster_m=2, group_m=3), 13),
]
SEVERAL = [
    (packed(5 * 64, 3 * 64, 64), _WALK, 13),
    (packed(6 * 64, 4 * 64, 64), _WALK.replace(group_m=6, square=4), 13),
    (packed(7 * 64, 40, 64), _WALK.replace(square=2), 7),
    (packed(3 * 64, 4 * 64 + 24, 64), _WALK.replace(tail_n=24, group_m=2), 13),
]


@pytest.mark.parametrize("walk", ONE_SQUARE + SEVERAL, ids=str)
def test_the_first_tile_is_tile_number_0(walk: tuple[Problem, Config, int]) -> None:
    walked = on_the_device(*walk)
    assert all(walked.first)
    assert walked == modelled(*walk)


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("&& walk.square_m * walk.square_n == walk.num_wide;", ";", SEVERAL[:1]),
        (
            "at(place - column * walk.square_m, column, 0);",
            "at(column, place - column * walk.square_m, 0);",
            ONE_SQUARE,
        ),
        ("__umulhi(4 * place, static_cast<uint32_t>(row_scale));", "0;", ONE_SQUARE[1:]),
        ("__umulhi(4 * place, static_cast<uint32_t>(row_scale));", "place;", ONE_SQUARE[2:]),
        ("__umulhi(4 * place, static_cast<uint32_t>(row_scale));", "1;", ONE_SQUARE[1:4]),
        ("__umulhi(4 * place,", "__umulhi(4 * place + 4,", ONE_SQUARE[1:]),
        ("at(place - column * walk.square_m, column, 0);", "at(place, column, 0);", ONE_SQUARE[1:]),
    ],
)
def test_a_wrong_shortcut_to_the_first_tile_is_seen(
    old: str, new: str, differs: list[tuple[Problem, Config, int]]
) -> None:
    for problem, config, num_sms in differs:
        walked = on_the_device(problem, config, num_sms, ("schedule.cuh", old, new))
        right = modelled(problem, config, num_sms)
        assert walked.wide == right.wide
        assert walked.first != right.first, (problem, config)


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(
    m=st.integers(1, 3000),
    n=st.integers(1, 5000),
    tile=st.sampled_from([(256, 200), (256, 192), (256, 128), (128, 256)]),
    tail=st.integers(1, 31),
    num_sms=st.integers(1, 140),
    group_m=st.integers(1, 12),
    square=st.integers(0, 6),
)
def test_tails_of_any_width_cover_out_once(
    m: int, n: int, tile: tuple[int, int], tail: int, num_sms: int, group_m: int, square: int
) -> None:
    """The model alone, of the tiles that are used."""
    tile_m, tile_n = tile
    tail_n = min(tail * 8, tile_n - 8)
    config = Config(tile_m=tile_m, tile_n=tile_n, tail_n=tail_n, group_m=group_m, square=square)
    problem = packed(m, n, 64)
    walked = modelled(problem, config, num_sms)
    assert_all_of_out_once(problem, config, walked)
    assert_counts_agree(problem, config, num_sms, walked)


@pytest.mark.parametrize("num_sms", [132, 114, 78])
def test_a_tail_takes_less_time_than_the_wave_that_it_takes_the_place_of(num_sms: int) -> None:
    problem = packed(8192, 8192, 8192)
    for tail_n in range(64, 192, 8):
        config = Config(tile_m=256, tile_n=192, tail_n=tail_n)
        wide, narrow = config.waves(problem, num_sms)
        whole, _ = config.replace(tail_n=0).waves(problem, num_sms)
        assert wide + narrow * tail_n / 192 <= whole
