// Weight decay by time: rows of a table that are behind, see training/time_decay.py.

#pragma once

#include <cmath>

#include "amsgrad.h"

namespace mixdim {

// A table (limit, width), of each row the sum of log(1 - rate * decay) when it was last up to date, and that sum now.
struct Decayed {
  float *weight, *decayed_to;
  int64_t limit, width;
  double now;
};

// Brings rows up to date, in order, so that a row may come twice. Returns `count`, or having changed nothing, the
// place of a row that is none of the table.
inline int64_t bring_up(const Decayed& table, const int64_t* rows, int64_t count) {
  const float now = static_cast<float>(table.now);
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= table.limit) return i;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + 2 * kAhead < count) __builtin_prefetch(table.decayed_to + rows[i + 2 * kAhead], 1);
    if (i + kAhead < count) __builtin_prefetch(table.weight + rows[i + kAhead] * table.width, 1);
    const int64_t row = rows[i];
    if (table.decayed_to[row] == now) continue;
    const float kept = static_cast<float>(std::exp(table.now - table.decayed_to[row]));
    float* __restrict weight = table.weight + row * table.width;
    for (int64_t j = 0; j < table.width; ++j) weight[j] *= kept;
    table.decayed_to[row] = now;
  }
  return count;
}

}  // namespace mixdim
