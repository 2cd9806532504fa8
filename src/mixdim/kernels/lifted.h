// Rows that are hit often, lifted once for all their hits.
//
// A block that holds few rows and gets many of a call's ids, such as a popular band or a small feature, multiplies
// the same rows with its projection again and again. Here such blocks are lifted before anything is looked up, all
// their rows, and for the rest of the call they are blocks of full width: vectors to copy, or to add up in bags.

#pragma once

#include "lookup.h"

namespace mixdim {

// How many values of a call lie in a block, and how many samples or bags have one.
struct Hits {
  int64_t values = 0, bags = 0;
};

// Costs are counted in multiply-adds for each of the D columns. To project the row of a sample, or the sum of a bag,
// takes d of them, and so does lifting a row. To write a lifted vector, or to read it for a value, takes as long as
// kTouch of them; 1 and 8 were no better.
constexpr int64_t kTouch = 3;

inline int64_t saved_by_lifting(const Block& block, Hits hits) {
  if (!block.projection) return 0;
  return hits.bags * block.width - hits.values * kTouch - block.rows * (block.width + kTouch);
}

// Lifted vectors take at most a sixteenth of the memory of the output, and at most this many floats, 8 MB: beyond
// the caches they are no cheaper than the projection.
constexpr int64_t kMostLifted = 1 << 21;

// In a large batch every eighth sample is counted: to read all ids one more time would cost more than it tells.
constexpr int64_t kManySamples = 1024, kCountedStep = 8;

// The features that have a block which would be lifted if it got all their values, each in another bag.
inline std::vector<int64_t> features_to_count(const Layer& layer, const Ids& ids) {
  std::vector<int64_t> found;
  for (int64_t f = 0; f < layer.num_features; ++f) {
    const Feature& feature = layer.features[f];
    const int64_t begin = ids.offsets ? ids.offsets[f * ids.batch] : 0;
    const int64_t values = ids.offsets ? ids.offsets[(f + 1) * ids.batch] - begin : ids.batch;
    const int64_t bags = std::min(values, ids.batch);
    const Block* blocks = layer.blocks + feature.first_block;
    if (std::any_of(blocks, blocks + feature.num_blocks,
                    [&](const Block& block) { return saved_by_lifting(block, {bags, bags}) > 0; })) {
      found.push_back(f);
    }
  }
  return found;
}

// Counts the hits of the blocks of some features. Ids out of range are for the lookup to say.
inline std::vector<Hits> count_hits(const Layer& layer, const Ids& ids, const std::vector<int64_t>& features) {
  const int64_t step = ids.batch < kManySamples ? 1 : kCountedStep;
  std::vector<Hits> hits(layer.num_blocks);
  std::vector<int64_t> last_bag(layer.num_blocks, -1);  // that was counted, of each block
  for (int64_t s = 0; s < ids.batch; s += step) {
    for (const int64_t f : features) {
      const Feature& feature = layer.features[f];
      const int64_t* offsets = ids.offsets ? ids.offsets + f * ids.batch + s : nullptr;
      const int64_t begin = offsets ? offsets[0] : s * layer.num_features + f;
      const int64_t end = offsets ? offsets[1] : begin + 1;
      for (int64_t v = begin; v < end; ++v) {
        int64_t row = 0;
        const int64_t b = find(layer, feature, ids.value(v), &row);
        if (b < 0) continue;
        hits[b].values += step;
        hits[b].bags += last_bag[b] != s ? step : 0;
        last_bag[b] = s;
      }
    }
  }
  return hits;
}

// The blocks to lift, by the ids and the layer alone, never by the number of threads: the sums of bags depend on it.
inline std::vector<int64_t> blocks_to_lift(const Layer& layer, const Ids& ids) {
  const std::vector<int64_t> features = features_to_count(layer, ids);
  if (features.empty()) return {};
  const std::vector<Hits> hits = count_hits(layer, ids, features);
  // What saves most for its memory comes first.
  std::vector<std::pair<double, int64_t>> candidates;
  for (int64_t b = 0; b < layer.num_blocks; ++b) {
    const Block& block = layer.blocks[b];
    const int64_t saved = saved_by_lifting(block, hits[b]);
    if (saved > 0) candidates.emplace_back(-static_cast<double>(saved) / block.rows, b);
  }
  std::sort(candidates.begin(), candidates.end());
  int64_t room = std::min(kMostLifted, ids.batch * layer.num_features * layer.base_dim / 16);
  std::vector<int64_t> chosen;
  for (const auto& [order, b] : candidates) {
    const int64_t size = layer.blocks[b].rows * layer.base_dim;
    if (size > room) continue;
    room -= size;
    chosen.push_back(b);
  }
  return chosen;
}

// The layer as one call sees it: blocks that are hit often have full width.
class Lifted {
 public:
  Lifted(const Layer& layer, const Ids& ids, int64_t threads) : layer_(layer) {
    const std::vector<int64_t> chosen = blocks_to_lift(layer, ids);
    if (chosen.empty()) return;
    blocks_.assign(layer.blocks, layer.blocks + layer.num_blocks);
    layer_.blocks = blocks_.data();
    lift(layer, chosen, threads);
  }
  Lifted(const Lifted&) = delete;
  const Layer& layer() const { return layer_; }

 private:
  struct Piece {  // some rows of a block, and where their vectors go
    int64_t block, first, count;
    float* to;
  };

  void lift(const Layer& layer, const std::vector<int64_t>& chosen, int64_t threads) {
    static thread_local std::vector<float> room;  // kept: fresh memory costs a fault for every page
    std::vector<Padded> packed(layer.num_blocks);
    int64_t rows = 0;
    for (const int64_t b : chosen) rows += layer.blocks[b].rows;
    if (static_cast<int64_t>(room.size()) < rows * layer.base_dim) room.resize(rows * layer.base_dim);
    std::vector<Piece> pieces;
    float* to = room.data();
    for (const int64_t b : chosen) {
      const Block& block = layer.blocks[b];
      const int64_t size = block.rows;
      packed[b].copy(block.projection, block.width, layer.base_dim);
      blocks_[b] = {block.start, block.end, size, layer.base_dim, to, nullptr, nullptr};
      for (int64_t first = 0; first < size; first += kTile) {
        pieces.push_back({b, first, std::min(kTile, size - first), to + first * layer.base_dim});
      }
      to += size * layer.base_dim;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (size_t p = 0; p < pieces.size(); ++p) {
      const Piece& piece = pieces[p];
      const Block& block = layer.blocks[piece.block];
      const float* in[kTile];
      float* out[kTile];
      std::vector<float> decoded(block.decoder ? piece.count * block.width : 0);
      for (int64_t n = 0; n < piece.count; ++n) {
        in[n] = stored_row(block, piece.first + n, decoded.data() + n * block.width);
        out[n] = piece.to + n * layer.base_dim;
      }
      const Padded& projection = packed[piece.block];
      multiply_rows(in, block.width, projection.data(), projection.stride, out, layer.base_dim, piece.count, false);
    }
  }

  Layer layer_;
  std::vector<Block> blocks_;
};

}  // namespace mixdim
