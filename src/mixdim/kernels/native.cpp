// The fast path of the layer, the optimizer and the interactions, for float32 on a CPU.
//
// Knows nothing about PyTorch: plain pointers in, plain pointers out, called through ctypes. What each
// function computes is specified by the plain PyTorch path (lookup.py, optim.py, interaction.py).
//
// Results never depend on the number of threads: a sum is always taken by one thread, in one order.
// Letters: B samples, F features, D = base_dim, a block has width d. A "padded" row is rounded up to a
// whole number of vectors and filled with zeros.

#include <new>
#include <utility>

#include "codes.h"
#include "decay.h"
#include "gradient.h"
#include "interaction.h"
#include "lifted.h"
#include "lookup.h"
#include "mlp.h"
#include "pages.h"
#include "scores.h"
#include "split_back.h"

using namespace mixdim;

namespace {

// Calls `work(interaction, sample, scratch)` for every sample, with its vectors looked up just before.
template <typename Work>
int64_t for_tiles(const Layer& layer, const Ids& ids, const float* dense, int64_t threads, const Work& work) {
  const std::vector<Padded> packed = pack_projections(layer);
  const int64_t tiles = (ids.batch + kTile - 1) / kTile, sample_size = layer.num_features * layer.base_dim;
  int64_t first_bad = INT64_MAX;
  if (!fits(layer, ids)) return kBadOffsets;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> vectors(kTile * sample_size);
    int64_t bad = INT64_MAX;
    InteractionScratch scratch({dense, nullptr, ids.batch, layer.num_features, layer.base_dim});
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * kTile, count = std::min(kTile, ids.batch - first);
      float* origin = vectors.data() - first * sample_size;  // where sample 0 would be
      int64_t at = 0;
      if (!lookup_tile(layer, packed, ids, first, count, origin, &at)) {
        bad = std::min(bad, at);
        continue;
      }
      const Interaction interaction{dense, origin, ids.batch, layer.num_features, layer.base_dim};
      for (int64_t s = first; s < first + count; ++s) work(interaction, s, &scratch);
    }
#pragma omp critical
    first_bad = std::min(first_bad, bad);
  }
  return first_bad == INT64_MAX ? kFine : first_bad;
}

// Looks up single ids or sums bags into out (B, F, D).
int64_t look_up(const Layer& stored, const Ids& ids, float* out, int64_t threads) {
  ask_for_large_pages(out, ids.batch * stored.num_features * stored.base_dim);
  const Lifted lifted(stored, ids, threads);
  const Layer* layer = &lifted.layer();
  const std::vector<Padded> packed = pack_projections(*layer);
  const int64_t tiles = (ids.batch + kTile - 1) / kTile;
  int64_t first_bad = INT64_MAX;
#pragma omp parallel num_threads(threads)
  {
    BagRows rows;
    int64_t bad = INT64_MAX;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * kTile, count = std::min(kTile, ids.batch - first);
      if (ids.offsets) {
        for (int64_t f = 0; f < layer->num_features; ++f) {
          int64_t at = 0;
          if (!sum_tile(*layer, packed, ids, f, first, count, &rows, out, &at)) bad = std::min(bad, at);
        }
        continue;
      }
      int64_t at = 0;
      if (!lookup_tile(*layer, packed, ids, first, count, out, &at)) bad = std::min(bad, at);
    }
#pragma omp critical
    first_bad = std::min(first_bad, bad);
  }
  return first_bad == INT64_MAX ? kFine : first_bad;
}

constexpr int64_t kNoMemory = -3, kBadCodes = -4;

template <typename Work>
int64_t if_memory_lasts(const Work& work) {
  static thread_local MlpScratch scratch;
  try {
    work(&scratch);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  return kFine;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// A number for the structs and functions of this file: library.py refuses a build that has another.
EXPORT int64_t mixdim_interface(int64_t) { return 12; }

// Where ids are checked, kernels return kFine, kBadOffsets or the position of an id out of range; what they have
// written by then means nothing.

// Looks up single ids or sums bags into out (B, F, D).
EXPORT int64_t mixdim_lookup(const Layer* stored, const Ids* ids, float* out, int64_t threads) {
  if (!fits(*stored, *ids)) return kBadOffsets;
  return look_up(*stored, *ids, out, threads);
}

// The same for a layer with blocks of codes.
EXPORT int64_t mixdim_coded_lookup(const Layer* stored, const CodeTensors* tensors, const CodedBlock* blocks,
                                   int64_t count, const Ids* ids, float* out, int64_t threads) {
  const CodedLayer coded(*stored, *tensors, blocks, count);
  if (!coded.fits()) return kBadCodes;
  if (!fits(*stored, *ids)) return kBadOffsets;
  return look_up(coded.layer(), *ids, out, threads);
}

// Says of each block whether mixdim_lookup lifts its rows once for these ids, as 1 or 0: for tests.
EXPORT int64_t mixdim_lifts(const Layer* layer, const Ids* ids, int64_t* lifts, int64_t) {
  if (!fits(*layer, *ids)) return kBadOffsets;
  std::fill_n(lifts, layer->num_blocks, 0);
  for (const int64_t b : blocks_to_lift(*layer, *ids)) lifts[b] = 1;
  return kFine;
}

// Sorts the values of every block by row. rows, values: one entry for each value; runs: one for each block.
EXPORT int64_t mixdim_sort(const Layer* layer, const Ids* ids, uint32_t* rows, uint32_t* values, Run* runs,
                           int64_t threads) {
  if (!fits(*layer, *ids)) return kBadOffsets;
  int64_t bad = kFine;
#pragma omp parallel for schedule(dynamic, 1) reduction(max : bad) num_threads(threads)
  for (int64_t f = 0; f < layer->num_features; ++f) {
    bad = std::max(bad, sort_feature(*layer, *ids, f, rows, values, runs));
  }
  return bad;
}

// From the gradient of the output (B, F, D), with samples `sample_stride` floats apart, to those of the touched rows
// and of the projections. Rows, values and runs are what mixdim_sort wrote.
EXPORT int64_t mixdim_backward(const Layer* layer, const Ids* ids, const Run* runs, const uint32_t* rows,
                               const uint32_t* values, const uint32_t* samples, const float* gradient,
                               int64_t sample_stride, const BlockGradient* to, int64_t threads) {
  if (!fits(*layer, *ids)) return kBadOffsets;
  // The costly blocks first, so that no thread is left with one at the end.
  std::vector<std::pair<int64_t, int64_t>> tasks;  // (cost, block)
  std::vector<int64_t> feature_of(layer->num_blocks);
  for (int64_t f = 0; f < layer->num_features; ++f) {
    const Feature& feature = layer->features[f];
    for (int64_t b = feature.first_block; b < feature.first_block + feature.num_blocks; ++b) {
      feature_of[b] = f;
      tasks.emplace_back(runs[b].count + 2 * runs[b].uniques * layer->blocks[b].width, b);
    }
  }
  std::sort(tasks.begin(), tasks.end(), [](const auto& x, const auto& y) {
    return x.first != y.first ? x.first > y.first : x.second < y.second;
  });
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (size_t task = 0; task < tasks.size(); ++task) {
    const int64_t b = tasks[task].second, f = feature_of[b];
    backward_block(*layer, *ids, f, b, runs[b], rows, values, samples, {gradient, sample_stride}, to[b]);
  }
  return kFine;
}

// Updates all parameters of all tasks. Returns -1, the first task whose gradient is not finite, or -2 - the first
// whose rows are not rows of its parameter, each once, ascending; then nothing has changed.
EXPORT int64_t mixdim_amsgrad(const Update* updates, int64_t count, int64_t threads) {
  for (int64_t u = 0; u < count; ++u) {
    if (!rows_fit(updates[u])) return -2 - u;
    const int64_t length = updates[u].count * updates[u].width;
    int64_t wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong) num_threads(threads) if (length > 1 << 15)
    for (int64_t i = 0; i < length; ++i) wrong += !(std::fabs(updates[u].gradient[i]) <= kLargestFloat);
    if (wrong) return u;
  }
#pragma omp parallel num_threads(threads)
  for (int64_t u = 0; u < count; ++u) {
    const Update& update = updates[u];
    const int64_t width = update.rows ? update.width : kChunk, total = update.count * update.width;
    const int64_t pieces = update.rows ? update.count : (total + kChunk - 1) / kChunk;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < pieces; ++i) {
      if (update.rows && i + kAhead < pieces) prefetch_row(update, update.rows[i + kAhead] * width);
      const int64_t at = (update.rows ? update.rows[i] : i) * width;
      amsgrad(update, update.gradient + i * width, std::min(width, total - i * width), at);
    }
  }
  return -1;
}

EXPORT int64_t mixdim_bring_up(const Decayed* table, const int64_t* rows, int64_t count, int64_t) {
  return bring_up(*table, rows, count);
}

EXPORT void mixdim_interact(const Interaction* from, float* out, int64_t threads) {
#pragma omp parallel num_threads(threads)
  {
    InteractionScratch scratch(*from);
#pragma omp for schedule(static)
    for (int64_t s = 0; s < from->batch; ++s) interact(*from, s, out + s * from->columns(), &scratch);
  }
}

EXPORT void mixdim_interact_back(const Interaction* from, const float* gradient, float* dense, float* vectors,
                                 int64_t threads) {
#pragma omp parallel num_threads(threads)
  {
    InteractionScratch scratch(*from);
#pragma omp for schedule(static)
    for (int64_t s = 0; s < from->batch; ++s) {
      interact_back(*from, s, gradient + s * from->columns(), dense, vectors, &scratch);
    }
  }
}

// Looks up and interacts tile by tile: the vectors never leave the cache.
EXPORT int64_t mixdim_lookup_interact(const Layer* layer, const Ids* ids, const float* dense, float* out,
                                      int64_t threads) {
  return for_tiles(*layer, *ids, dense, threads, [&](const Interaction& from, int64_t s, InteractionScratch* scratch) {
    interact(from, s, out + s * from.columns(), scratch);
  });
}

// The gradients of the dense vectors (B, D) and of the vectors (B, F, D), which are looked up once more.
EXPORT int64_t mixdim_lookup_interact_back(const Layer* layer, const Ids* ids, const float* dense,
                                           const float* gradient, float* dense_gradient, float* vectors_gradient,
                                           int64_t threads) {
  return for_tiles(*layer, *ids, dense, threads, [&](const Interaction& from, int64_t s, InteractionScratch* scratch) {
    interact_back(from, s, gradient + s * from.columns(), dense_gradient, vectors_gradient, scratch);
  });
}

// The split form's part that follows from the weights alone, and that of the rows which occur: runs and rows are what
// mixdim_sort wrote. Where all rows of a block are entries, runs may be null.
EXPORT void mixdim_split_weights(const Layer* layer, const Split* split, const Run* runs, const uint32_t* rows,
                                 int64_t threads) {
  prepare_weights(*layer, *split, runs, rows, threads);
}

EXPORT void mixdim_split_entries(const Layer* layer, const Split* split, const Run* runs, const uint32_t* rows,
                                 int64_t threads) {
  prepare_entries(*layer, *split, runs, rows, threads);
}

// out (B, D + pairs).
EXPORT void mixdim_split_interact(const Layer* layer, const Split* split, const Run* runs, const uint32_t* rows,
                                  const uint32_t* values, const float* dense, float* out, int64_t threads) {
  const int64_t D = layer->base_dim;
  find_places(*layer, *split, runs, rows, values, threads);
  matrix_product_in_parallel(split->batch, split->z_columns, D, rows_of(dense, D),
                             transposed(rows_of(split->z_weight, D)), split->z, split->z_columns, false, scratches(threads), threads);
  pairs(*split, dense, out, threads);
}

// The gradients of the dense vectors, of the touched rows and of the projections. The gradient of what was prepared
// goes `offset` floats from it; `work` has room for what PairGradients holds, one after the other.
EXPORT void mixdim_split_back(const Layer* layer, const Split* split, const Run* runs, const uint32_t* rows,
                              const uint32_t* values, const float* dense, const float* gradient, float* work,
                              int64_t num_elements, int64_t offset, float* dense_gradient, const BlockGradient* to, int64_t threads) {
  const int64_t B = split->batch, D = layer->base_dim, F = layer->num_features;
  float *z_gradient = split->z + offset, *z_weight_gradient = split->z_weight + offset;
  clear_gradients(*split, offset, threads);
  float *elements = work + F * split->feature_stride(), *x = elements + B * num_elements, *of_x = x + B * (split->columns - split->narrow);
  const PairGradients sorted{work, elements, x, of_x};
  pairs_back(*layer, *split, runs, values, gradient, offset, z_gradient, sorted, dense_gradient, threads);
  lifted_back(*layer, *split, runs, values, dense, sorted.products, offset, threads);
  matrix_product_in_parallel(B, D, split->z_columns, rows_of(z_gradient, split->z_columns),
                             rows_of(split->z_weight, D), dense_gradient, D, true, scratches(threads), threads);
  matrix_product_in_parallel(split->z_columns, D, B, transposed(rows_of(z_gradient, split->z_columns)),
                             rows_of(dense, D), z_weight_gradient, D, false, scratches(threads), threads);
  weights_of_entries(*layer, *split, to, offset, threads);
  mirror(split->gram + offset, split->columns, threads);
  matrix_product_in_parallel(split->columns, D, split->columns, rows_of(split->gram + offset, split->columns),
                             rows_of(split->q, split->stride), split->q + offset, split->stride, true, scratches(threads), threads);
  rows_of_entries(*layer, *split, to, offset, threads);
  weights_of_q(*layer, *split, runs, rows, to, z_weight_gradient, offset, threads);
}

// Memory of the calling thread, at least `count` floats, kept from call to call: fresh memory costs a fault
// for every page. Null if there is not enough.
EXPORT float* mixdim_scratch(int64_t count, int64_t) {
  static thread_local std::vector<float> scratch;
  try {
    if (static_cast<int64_t>(scratch.size()) < count) scratch.resize(count);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return scratch.data();
}

// out (B,) = the scores.
EXPORT int64_t mixdim_scores(const Side* users, const Side* items, const float* gram, int64_t columns, float* out,
                             int64_t threads) {
  if (!fits(*users, *items)) return kBadOffsets;
  const Grams grams(*users, *items, gram, columns);
  const int64_t batch = users->ids->batch;
  int64_t wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong) num_threads(threads)
  for (int64_t first = 0; first < batch; first += kScoresAtOnce) {
    wrong += !score(*users, *items, grams, first, std::min(kScoresAtOnce, batch - first), out);
  }
  return wrong ? 0 : kFine;
}

// Sorts the values of both sides by row, as mixdim_sort does for a layer.
EXPORT int64_t mixdim_scores_sort(const Side* users, const Side* items, uint32_t* user_rows, uint32_t* user_samples,
                                  Run* user_runs, uint32_t* item_rows, uint32_t* item_samples, Run* item_runs,
                                  int64_t threads) {
  if (!fits(*users, *items)) return kBadOffsets;
  int64_t bad = kFine;
#pragma omp parallel for schedule(static, 1) reduction(max : bad) num_threads(std::min<int64_t>(threads, 2))
  for (int side = 0; side < 2; ++side) {
    if (side == 0) {
      bad = std::max(bad, sort_feature(*users->layer, *users->ids, 0, user_rows, user_samples, user_runs));
    } else {
      bad = std::max(bad, sort_feature(*items->layer, *items->ids, 0, item_rows, item_samples, item_runs));
    }
  }
  return bad;
}

// From the gradient of the scores (B,) to those of both sides' rows and of the gram matrix.
EXPORT int64_t mixdim_scores_back(const Side* users, const Side* items, const float* gram, int64_t columns,
                                  const Run* user_runs, const uint32_t* user_rows, const uint32_t* user_samples,
                                  const BlockGradient* user_to, const Run* item_runs, const uint32_t* item_rows,
                                  const uint32_t* item_samples, const BlockGradient* item_to, const float* gradient,
                                  float* gram_gradient, int64_t threads) {
  if (!fits(*users, *items)) return kBadOffsets;
  const Grams grams(*users, *items, gram, columns);
  const int64_t num_users = users->layer->num_blocks, num_items = items->layer->num_blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < num_users + num_items; ++task) {
    if (task < num_users) {
      scores_back(*users, *items, grams.transposed, num_items, true, task, user_runs[task], user_rows, user_samples,
                  gradient, user_to[task], gram_gradient, columns);
    } else {
      const int64_t b = task - num_users;
      scores_back(*items, *users, grams.straight, num_items, false, b, item_runs[b], item_rows, item_samples,
                  gradient, item_to[b], nullptr, columns);
    }
  }
  return kFine;
}

// Fills the values of all layers. This and the next return kFine, or kNoMemory.
EXPORT int64_t mixdim_mlp(const Mlp* mlp, int64_t threads) {
  return if_memory_lasts([&](MlpScratch* scratch) { mlp_forward(*mlp, threads, scratch); });
}

// From the gradient of the last layer's values to those of the parameters, one entry of `to` for each layer, and of
// the input, which may be null.
EXPORT int64_t mixdim_mlp_back(const Mlp* mlp, const float* gradient, float* input_gradient, const MlpGradients* to,
                               int64_t threads) {
  return if_memory_lasts(
      [&](MlpScratch* scratch) { mlp_backward(*mlp, gradient, input_gradient, to, threads, scratch); });
}

// Rows of blocks of one code as float32 (count, dim): see take_coded. `places` has the first byte of each block and its
// rows; its steps are those of its number. Directions: how many have so many bits, see CodedBlock.
EXPORT int64_t mixdim_take_coded(const CodeTensors* tensors, const int64_t* places, int64_t num_blocks,
                                 const int64_t* directions, int64_t has_mean, int64_t dim, const int64_t* rows,
                                 int64_t count, const int64_t* blocks, int64_t block, float* out, int64_t threads) {
  std::vector<std::optional<Decoder>> decoders(num_blocks);
  for (int64_t b = 0; b < num_blocks; ++b) {
    CodedBlock coded{b, places[2 * b + 1], places[2 * b], b * (dim - has_mean), -1, has_mean, {}};
    std::copy_n(directions, kNumWidths, coded.directions);
    decoders[b] = Decoder::of(coded, *tensors, 0);
    if (decoders[b] && decoders[b]->dim != dim) decoders[b].reset();
  }
  return take_coded(decoders, rows, count, blocks, block, dim, out, threads);
}
