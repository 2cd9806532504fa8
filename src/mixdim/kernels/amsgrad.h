// The optimizer: one pass over the rows that have a gradient.

#pragma once

#include <cfloat>
#include <cmath>

#include "gradient.h"

namespace mixdim {

constexpr float kLargestFloat = FLT_MAX;
constexpr int64_t kChunk = 4096;  // numbers of a dense parameter that are updated together

// One parameter, laid out by optimizer.py: the rows that `gradient` (count, width) belongs to, or null for
// all of it; the state of the parameter's shape, `limit` rows; and the numbers of the step, `kept` that which
// weight decay leaves of a weight.
struct Update {
  const int64_t* rows;
  const float* gradient;
  int64_t count, width, limit;
  float *weight, *mean, *square, *largest;
  double step_size, rest1, beta2, correction2_sqrt, eps, kept;
};

// Whether the rows rise and are rows of the parameter: a row that came twice would be two threads' at once.
inline bool rows_fit(const Update& update) {
  if (update.count == 0) return true;  // also of a table that no id touched, whose rows have no address
  if (!update.rows) return update.count == update.limit;
  int64_t before = -1, wrong = 0;
  for (int64_t i = 0; i < update.count; ++i) {
    wrong += update.rows[i] <= before || update.rows[i] >= update.limit;
    before = update.rows[i];
  }
  return wrong == 0;
}

PREFETCH prefetch_row(const Update& update, int64_t at) {
  for (const float* array : {update.weight, update.mean, update.square, update.largest}) {
    __builtin_prefetch(array + at, 1);
  }
}

// The same operations, in the same order, as torch.optim.AdamW(amsgrad=True), and without decay as Adam.
inline void amsgrad(const Update& update, const float* gradient, int64_t length, int64_t at) {
  float* __restrict weight = update.weight + at;
  float* __restrict mean = update.mean + at;
  float* __restrict square = update.square + at;
  float* __restrict largest = update.largest + at;
  const float step_size = update.step_size, rest1 = update.rest1, beta2 = update.beta2, eps = update.eps;
  const float rest2 = 1.0 - update.beta2, correction2_sqrt = update.correction2_sqrt;
  const float kept = update.kept;
  if (kept != 1.0f) {  // a loop of its own, so that weights without decay are rounded as they always were
    for (int64_t i = 0; i < length; ++i) weight[i] *= kept;
  }
  for (int64_t i = 0; i < length; ++i) {
    const float g = gradient[i];
    mean[i] += rest1 * (g - mean[i]);
    square[i] = beta2 * square[i] + rest2 * g * g;
    largest[i] = largest[i] > square[i] ? largest[i] : square[i];
    weight[i] -= step_size * (mean[i] / (std::sqrt(largest[i]) / correction2_sqrt + eps));
  }
}

}  // namespace mixdim
