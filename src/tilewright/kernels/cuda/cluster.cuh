// Who shares what in a cluster of CLUSTER_M x CLUSTER_N CTAs, by rank. Knows ranks and masks; nothing of barriers.
//
//   rank     column 0  1  2  3     CLUSTER_M = 2, CLUSTER_N = 4
//   row 0           0  2  4  6     a row needs the same tile of a: CLUSTER_N CTAs load a share each for all of it
//   row 1           1  3  5  7     a column needs the same tile of b: CLUSTER_M CTAs do
//
// So a CTA's slot is filled by its row and its column, and its own loads go to these: its peers, itself among them.
#pragma once

#include "config.cuh"

constexpr int PEERS = Config::CLUSTER_M + Config::CLUSTER_N - 1;
constexpr bool HAS_ROWS_AND_COLUMNS = Config::CLUSTER_M > 1 && Config::CLUSTER_N > 1;  // else all share one operand

DEVICE uint32_t row_in_cluster(uint32_t rank) {  // 0 .. CLUSTER_M-1
    return HAS_ROWS_AND_COLUMNS ? rank % Config::CLUSTER_M : rank;
}
DEVICE uint32_t column_in_cluster(uint32_t rank) {  // 0 .. CLUSTER_N-1
    return HAS_ROWS_AND_COLUMNS ? rank / Config::CLUSTER_M : rank;
}

// The CTAs that need the same tile of a as this one, and those of b: a bit for each rank.
DEVICE uint16_t mask_of_row(uint32_t rank) {
    constexpr uint32_t FIRST_ROW = ((1u << Config::SHARING) - 1) / ((1u << Config::CLUSTER_M) - 1);
    return static_cast<uint16_t>(HAS_ROWS_AND_COLUMNS ? FIRST_ROW << row_in_cluster(rank) : FIRST_ROW);
}
DEVICE uint16_t mask_of_column(uint32_t rank) {
    constexpr uint32_t FIRST_COLUMN = (1u << Config::CLUSTER_M) - 1;
    return static_cast<uint16_t>(HAS_ROWS_AND_COLUMNS ? FIRST_COLUMN << column_in_cluster(rank) * Config::CLUSTER_M
                                                      : FIRST_COLUMN);
}

// The rank of peer number i, 0 .. PEERS-1: first the CTAs of this one's column, itself too, then the others of its row.
DEVICE uint32_t peer(uint32_t i, uint32_t rank) {
    if constexpr (!HAS_ROWS_AND_COLUMNS) return i;
    const uint32_t row = row_in_cluster(rank), column = column_in_cluster(rank);
    if (i < Config::CLUSTER_M) return column * Config::CLUSTER_M + i;
    const uint32_t other = i - Config::CLUSTER_M;  // 0 .. CLUSTER_N-2
    return (other + (other < column ? 0 : 1)) * Config::CLUSTER_M + row;
}
