"""Bugs of clusters that share both operands: masks, shares and peers; as in mutants.py."""

from __future__ import annotations

from gemm import WRONG_NUMBERS, Mutant
from mutants import CLUSTER, CONSUMER, END, PRODUCER, UNIT, mutant

_CASE = "cluster of rows and columns"
_TELLS = "if (lane < PEERS) ptx"
_COUNT = "Config::EMPTY_ARRIVALS);"
_LOADED_EARLY = ("operand released early", "unordered copies", "missing wait", "refilled while read")

CLUSTER_MUTANTS: tuple[Mutant, ...] = (
    mutant("the row is not told", _CASE, (CONSUMER, _TELLS, "if (lane < Config::CLUSTER_M) ptx"), by="deadlock"),
    mutant(
        "the row is not told, and not waited for",
        _CASE,
        (CONSUMER, _TELLS, "if (lane < Config::CLUSTER_M) ptx"),
        (UNIT, _COUNT, "Config::EMPTY_ARRIVALS / PEERS * Config::CLUSTER_M);"),
        by=_LOADED_EARLY,
    ),
    mutant(
        "the column is not told, and not waited for",
        _CASE,
        (CONSUMER, _TELLS, "if (lane == row_in_cluster(ptx::cluster_ctarank()) || lane == 2) ptx"),
        (UNIT, _COUNT, "Config::EMPTY_ARRIVALS / PEERS * Config::CLUSTER_N);"),
        by=_LOADED_EARLY,
    ),
    mutant(
        "one peer less is waited for",
        "cluster of uneven shares",
        (UNIT, _COUNT, "Config::EMPTY_ARRIVALS / PEERS * (PEERS - 1));"),
        by=(*_LOADED_EARLY, "mbarrier over-arrival"),
    ),
    mutant(
        "the other column is told of, not the other row",
        _CASE,
        (CLUSTER, "* Config::CLUSTER_M + row;", "* Config::CLUSTER_M + 0 * row;"),
        by=("deadlock", "mbarrier over-arrival", "missing wait"),
    ),
    mutant(
        "a CTA is its own other peer",
        _CASE,
        (CLUSTER, "(other < column ? 0 : 1)", "(other < column ? 0 : 0)"),
        by=("deadlock", "mbarrier over-arrival"),
    ),
    mutant(
        "a of the first row alone",
        _CASE,
        (CLUSTER, "FIRST_ROW << row_in_cluster(rank)", "FIRST_ROW"),
        by=("deadlock", "unordered copies", "mbarrier over-arrival", WRONG_NUMBERS),
    ),
    mutant(
        "b of the first column alone",
        _CASE,
        (CLUSTER, "FIRST_COLUMN << column_in_cluster(rank) * Config::CLUSTER_M", "FIRST_COLUMN"),
        by=("deadlock", "unordered copies", "mbarrier over-arrival", WRONG_NUMBERS),
    ),
    mutant(
        "a goes to the whole cluster",
        _CASE,
        (CLUSTER, "FIRST_ROW << row_in_cluster(rank)", "(1u << Config::SHARING) - 1"),
        by=("unordered copies", "mbarrier over-arrival", WRONG_NUMBERS),
    ),
    mutant(
        "rows and columns of the cluster are mixed up in what is loaded",
        "cluster of uneven shares",
        (PRODUCER, "column_in_cluster(the_rank)), mask", "row_in_cluster(the_rank) % 2), mask"),
        by=("unordered copies", "deadlock", WRONG_NUMBERS),
    ),
    mutant(
        "a CTA without a box in the last round loads one past the tile",
        "cluster of uneven shares",
        (PRODUCER, "if (BOXES - round < SHARES && rank >= BOXES - round) break;", ""),
        by=("unordered copies", "refilled while read", "missing wait", "deadlock"),
    ),
    mutant(
        "boxes that overlap",
        "cluster of uneven shares",
        (PRODUCER, "(round + rank) * BOX_ROWS;", "(round + rank) * BOX_ROWS / 2;"),
        by=("unordered copies", WRONG_NUMBERS),
    ),
    mutant(
        "a CTA leaves while its peers still arrive",
        _CASE,
        (UNIT, END, ""),
        by=("exit before remote access", "peer exited"),
    ),
)
