// From the gradient of the vectors to those of the touched rows, each once, and of the projections.

#pragma once

#include "lookup.h"

namespace mixdim {

// Sorts `keys` (all below `limit`) with their payload, stably, by bytes-and-a-bit at a time.
void radix_sort(uint32_t* keys, uint32_t* payload, int64_t count, uint64_t limit, std::vector<uint32_t>* spare) {
  constexpr int kBits = 11;
  constexpr uint32_t kBuckets = 1u << kBits;
  if (count < 2) return;
  spare->resize(2 * count);
  uint32_t *from_keys = keys, *from_payload = payload, *to_keys = spare->data(), *to_payload = to_keys + count;
  for (int shift = 0; shift < 32 && (limit - 1) >> shift; shift += kBits) {
    uint32_t starts[kBuckets] = {};
    for (int64_t i = 0; i < count; ++i) ++starts[(from_keys[i] >> shift) & (kBuckets - 1)];
    uint32_t total = 0;
    for (uint32_t& start : starts) {
      const uint32_t here = start;
      start = total;
      total += here;
    }
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t at = starts[(from_keys[i] >> shift) & (kBuckets - 1)]++;
      to_keys[at] = from_keys[i];
      to_payload[at] = from_payload[i];
    }
    std::swap(from_keys, to_keys);
    std::swap(from_payload, to_payload);
  }
  if (from_keys != keys) {
    std::memcpy(keys, from_keys, count * sizeof(uint32_t));
    std::memcpy(payload, from_payload, count * sizeof(uint32_t));
  }
}

// The values of one block, sorted by row: `count` of them with `uniques` distinct rows.
struct Run {
  int64_t first, count, uniques;
};

// Sorts the values of one feature by block and row. Returns kFine, or the position of an id out of range.
int64_t sort_feature(const Layer& layer, const Ids& ids, int64_t f, uint32_t* rows, uint32_t* values, Run* runs) {
  const Feature& feature = layer.features[f];
  const int64_t begin = ids.offsets ? ids.offsets[f * ids.batch] : f * ids.batch;
  const int64_t count = ids.offsets ? ids.offsets[(f + 1) * ids.batch] - begin : ids.batch;
  std::vector<int64_t> ends(feature.num_blocks, 0);  // of each block: first its values, then where they end
  std::vector<int32_t> block_of(count);
  std::vector<uint32_t> row_of(count), spare;
  for (int64_t v = 0; v < count; ++v) {  // every id is read once: what is checked is what is used
    const int64_t at = ids.offsets ? begin + v : v * layer.num_features + f;
    int64_t row = 0;
    const int64_t b = find(layer, feature, ids.value(at), &row);
    if (b == kBad) return at;
    block_of[v] = b == kPadding ? -1 : static_cast<int32_t>(b - feature.first_block);
    row_of[v] = static_cast<uint32_t>(row);
    if (b != kPadding) ++ends[block_of[v]];
  }
  int64_t next = begin;
  for (int64_t b = 0; b < feature.num_blocks; ++b) {
    runs[feature.first_block + b] = {next, ends[b], 0};
    next += ends[b];
    ends[b] = next - ends[b];
  }
  for (int64_t v = 0; v < count; ++v) {
    if (block_of[v] < 0) continue;
    const int64_t to = ends[block_of[v]]++;
    rows[to] = row_of[v];
    values[to] = static_cast<uint32_t>(v);
  }
  for (int64_t b = feature.first_block; b < feature.first_block + feature.num_blocks; ++b) {
    Run& run = runs[b];
    const Block& block = layer.blocks[b];
    radix_sort(rows + run.first, values + run.first, run.count, block.rows, &spare);
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      run.uniques += i == run.first || rows[i] != rows[i - 1];
    }
  }
  return kFine;
}

constexpr int64_t kAhead = 12;  // values on their way from memory

// Where a block's gradients go.
struct BlockGradient {
  int64_t* rows;      // (uniques,) rows of the packed table
  float* values;      // (uniques, width)
  float* projection;  // (width, D), or null
  int64_t first_row;  // of the block within the packed table
};

// values[n] = matrix @ gradient[n] for narrow blocks: a dot product for each of a few rows of the matrix.
void project_back_narrow(const float* gradients, int64_t stride, const float* matrix, int64_t width, float* values,
                         int count) {
  for (int n = 0; n < count; ++n) {
    for (int64_t k = 0; k < width; ++k) {
      Vector sum = {};
      for (int64_t c = 0; c < stride; c += kLanes) {
        sum += load(gradients + n * stride + c) * load(matrix + k * stride + c);
      }
      values[n * width + k] = add_lanes(sum);
    }
  }
}

// The gradient of the output (B, F, D); samples are `sample_stride` floats apart, as in a part of a wider matrix.
struct OutputGradient {
  const float* values;
  int64_t sample_stride;
};

void backward_block(const Layer& layer, const Ids& ids, int64_t f, int64_t b, const Run& run,
                    const uint32_t* rows, const uint32_t* values, const uint32_t* samples,
                    const OutputGradient& gradient, const BlockGradient& to) {
  const Block& block = layer.blocks[b];
  const int64_t base_dim = layer.base_dim, stride = padded(base_dim), width = block.width;
  const int64_t begin = ids.offsets ? ids.offsets[f * ids.batch] : 0;
  const bool narrow = width < kLanes;
  Padded projection;
  if (block.projection) {
    if (narrow) {
      projection.copy(block.projection, width, base_dim);
    } else {
      projection.copy_transposed(block.projection, width, base_dim);
    }
  }
  const auto gradient_of = [&](uint32_t value) {
    const int64_t sample = samples ? samples[begin + value] : value;
    return gradient.values + sample * gradient.sample_stride + f * base_dim;
  };
  std::vector<float> projection_gradient(block.projection ? width * stride : 0, 0.0f);
  std::vector<float> sums(kRowsAtOnce * stride, 0.0f);
  const std::vector<float> nothing(width, 0.0f);

  int64_t i = run.first;
  const int64_t end = run.first + run.count;
  for (int64_t unique = 0; unique < run.uniques; unique += kRowsAtOnce) {
    const int count = static_cast<int>(std::min<int64_t>(kRowsAtOnce, run.uniques - unique));
    const float* table_rows[kRowsAtOnce];
    for (int n = 0; n < kRowsAtOnce; ++n) table_rows[n] = nothing.data();
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int n = 0; n < count; ++n) {
      const uint32_t row = rows[i];
      float* sum = &sums[n * stride];
      for (; i < end && rows[i] == row; ++i) {
        if (i + kAhead < end) {
          prefetch(gradient_of(values[i + kAhead]), base_dim);
          prefetch(block.table + rows[i + kAhead] * width, width);
        }
        add_row(sum, gradient_of(values[i]), base_dim, ids.weights ? ids.weights[begin + values[i]] : 1.0f);
      }
      table_rows[n] = block.table + row * width;
      to.rows[unique + n] = to.first_row + row;
    }
    float* values_out = to.values + unique * width;
    if (!block.projection) {
      for (int n = 0; n < count; ++n) std::memcpy(values_out + n * width, &sums[n * stride], width * sizeof(float));
      continue;
    }
    if (narrow) {
      project_back_narrow(sums.data(), stride, projection.data(), width, values_out, count);
    } else {
      const float* in[kRowsAtOnce];
      float* out[kRowsAtOnce];
      for (int n = 0; n < count; ++n) {
        in[n] = &sums[n * stride];
        out[n] = values_out + n * width;
      }
      multiply_rows(in, base_dim, projection.data(), projection.stride, out, width, count, false);
    }
    for (int64_t k = 0; k < width; ++k) {
      float* row = &projection_gradient[k * stride];
      const float e0 = table_rows[0][k], e1 = table_rows[1][k], e2 = table_rows[2][k], e3 = table_rows[3][k];
      for (int64_t c = 0; c < stride; c += kLanes) {
        const float* sum = &sums[c];
        store(row + c, load(row + c) + e0 * load(sum) + e1 * load(sum + stride) + e2 * load(sum + 2 * stride) +
                           e3 * load(sum + 3 * stride));
      }
    }
  }
  if (to.projection) {
    for (int64_t k = 0; k < width; ++k) {
      std::memcpy(to.projection + k * base_dim, &projection_gradient[k * stride], base_dim * sizeof(float));
    }
  }
}

}  // namespace mixdim
