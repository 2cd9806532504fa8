// The optimizer: one pass over the rows that have a gradient.

#pragma once

#include <cmath>

#include "vectors.h"

namespace mixdim {

struct AMSGrad {
  double step_size, beta1, beta2, correction2_sqrt, eps;
};

// The same operations, in the same order, as torch.optim.Adam(amsgrad=True).
inline void amsgrad(const AMSGrad& settings, const float* gradient, int64_t count, float* __restrict weight,
                    float* __restrict mean, float* __restrict square, float* __restrict largest) {
  const float step_size = settings.step_size, beta2 = settings.beta2, eps = settings.eps;
  const float rest1 = 1.0 - settings.beta1, rest2 = 1.0 - settings.beta2;
  const float correction2_sqrt = settings.correction2_sqrt;
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    mean[i] += rest1 * (g - mean[i]);
    square[i] = beta2 * square[i] + rest2 * g * g;
    largest[i] = largest[i] > square[i] ? largest[i] : square[i];
    weight[i] -= step_size * (mean[i] / (std::sqrt(largest[i]) / correction2_sqrt + eps));
  }
}

}  // namespace mixdim
