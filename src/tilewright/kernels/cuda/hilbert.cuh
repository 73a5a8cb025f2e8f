// Cells along a Hilbert curve: neighbours in time are neighbours in out, at every scale, so that the tiles in flight
// share rows of a and columns of b whatever their number. Knows cells and their order; nothing of tiles or bytes.
#pragma once

#include "base.cuh"

// A place in a rectangle of cells.
struct Cell {
    int32_t row;
    int32_t column;
};

// The cell after `index` steps of a curve that visits every cell of a rectangle of `rows` x `columns` once, by steps to
// a neighbour (now and then a diagonal one where an odd side forces it). Each turn of the loop goes into one of two or
// three parts of the rectangle; about log2 of the longer side turns. Source: J. Cerveny, "gilbert", the generalised
// Hilbert curve for rectangles of arbitrary sizes, written anew as a loop (LICENSES/gilbert.txt, BSD-2-Clause).
DEVICE Cell hilbert_cell(int32_t index, int32_t rows, int32_t columns) {
    Cell at{0, 0};                                                    // the corner where the part begins
    Cell along = rows >= columns ? Cell{rows, 0} : Cell{0, columns};  // the part's main side, and its direction
    Cell across = rows >= columns ? Cell{0, columns} : Cell{rows, 0};
    while (true) {
        const int32_t length = abs(along.row + along.column);
        const int32_t width = abs(across.row + across.column);
        const Cell step{(along.row > 0) - (along.row < 0), (along.column > 0) - (along.column < 0)};
        const Cell side{(across.row > 0) - (across.row < 0), (across.column > 0) - (across.column < 0)};
        if (width == 1) return {at.row + step.row * index, at.column + step.column * index};
        if (length == 1) return {at.row + side.row * index, at.column + side.column * index};
        Cell half{along.row >> 1, along.column >> 1};                 // rounded down, also below zero
        Cell middle{across.row >> 1, across.column >> 1};
        if (2 * length > 3 * width) {                                 // long: two parts, one behind the other
            if (abs(half.row + half.column) % 2 != 0 && length > 2) {
                half = {half.row + step.row, half.column + step.column};
            }
            const int32_t first = abs(half.row + half.column) * width;
            if (index >= first) {
                index -= first;
                at = {at.row + half.row, at.column + half.column};
                half = {along.row - half.row, along.column - half.column};
            }
            along = half;
            continue;
        }
        if (abs(middle.row + middle.column) % 2 != 0 && width > 2) {
            middle = {middle.row + side.row, middle.column + side.column};
        }
        const int32_t first = abs(middle.row + middle.column) * abs(half.row + half.column);
        const int32_t second = length * (width - abs(middle.row + middle.column));
        if (index < first) {                                          // up
            along = middle;
            across = half;
        } else if (index < first + second) {                          // along
            index -= first;
            at = {at.row + middle.row, at.column + middle.column};
            across = {across.row - middle.row, across.column - middle.column};
        } else {                                                      // and down again
            index -= first + second;
            at = {at.row + along.row - step.row + middle.row - side.row,
                  at.column + along.column - step.column + middle.column - side.column};
            across = {half.row - along.row, half.column - along.column};
            along = {-middle.row, -middle.column};
        }
    }
}
