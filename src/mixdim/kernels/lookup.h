// From ids to vectors: find the row, take it, lift it.

#pragma once

#include "codes.h"

namespace mixdim {

// All structs are laid out as rows of int64 by structs.py, which checks that tables, projections and orders are
// as large as their layer says. What comes from a user's tensors, ids and offsets, is checked here, in every call
// that reads by it: it may have changed since the last one.

struct Block {
  int64_t start, end;       // ranks of the feature
  int64_t rows, width;      // stored for them: a row for each rank, or one that all share; and how wide
  const float* table;       // (rows, width); null where rows are codes
  const float* projection;  // (width, D), or null if there is none
  const Decoder* decoder;   // of codes: only a lookup reads them, see CodedLayer
};

struct Feature {
  int64_t rows, first_block, num_blocks;
  const int32_t* rank_of_id;  // null where ids are ranks
};

struct Layer {
  const Feature* features;
  const Block* blocks;
  int64_t num_features, num_blocks, base_dim;
  int64_t padding_id, has_padding;
};

// The ids of a lookup: one for each sample and feature, or bags in feature-major order.
struct Ids {
  const void* values;
  int64_t is_64;
  int64_t batch;
  const int64_t* offsets;  // (F * B + 1), or null for single ids (B, F)
  const float* weights;    // one for each value of a bag, or null
  int64_t num_values;

  int64_t value(int64_t i) const {
    return is_64 ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
  }
};

constexpr int64_t kPadding = -1, kBad = -2;
constexpr int64_t kFine = -1, kBadOffsets = -2;  // what kernels return, if not the position of an id out of range

// Whether the ids are as many as their batch says, and offsets rise from 0 to the number of values.
inline bool fits(const Layer& layer, const Ids& ids) {
  const int64_t bags = layer.num_features * ids.batch;
  if (!ids.offsets) return ids.num_values == bags;
  if (ids.offsets[0] != 0 || ids.offsets[bags] != ids.num_values) return false;
  int64_t falls = 0;
  for (int64_t i = 0; i < bags; ++i) falls += ids.offsets[i + 1] < ids.offsets[i];
  return falls == 0;
}

// The block that an id of a feature lies in, and its stored row there; kPadding or kBad if there is none.
inline int64_t find(const Layer& layer, const Feature& feature, int64_t id, int64_t* row) {
  if (layer.has_padding && id == layer.padding_id) return kPadding;
  if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(feature.rows)) return kBad;
  const int64_t rank = feature.rank_of_id ? feature.rank_of_id[id] : id;
  if (static_cast<uint64_t>(rank) >= static_cast<uint64_t>(feature.rows)) return kBad;  // a damaged order
  int64_t b = feature.first_block;
  const int64_t last = b + feature.num_blocks - 1;
  while (b < last && rank >= layer.blocks[b].end) ++b;
  *row = std::min(rank - layer.blocks[b].start, layer.blocks[b].rows - 1);
  return b;
}

PREFETCH prefetch(const float* row, int64_t width) {
  for (int64_t c = 0; c < std::min<int64_t>(width, 128); c += 16) __builtin_prefetch(row + c);
}

PREFETCH prefetch_stored(const Block& block, int64_t row) {
  if (block.decoder) {
    block.decoder->prefetch(row);
  } else {
    prefetch(block.table + row * block.width, block.width);
  }
}

// A stored row in float32: where it is, or, if it is codes, decoded to `room` (width,).
inline const float* stored_row(const Block& block, int64_t row, float* room) {
  if (!block.decoder) return block.table + row * block.width;
  block.decoder->decode(row, room);
  return room;
}

// A layer with the decoders of its blocks of codes.
class CodedLayer {
 public:
  CodedLayer(const Layer& layer, const CodeTensors& tensors, const CodedBlock* coded, int64_t count)
      : layer_(layer), blocks_(layer.blocks, layer.blocks + layer.num_blocks), decoders_(count) {
    layer_.blocks = blocks_.data();
    for (int64_t n = 0; n < count; ++n) {
      if (coded[n].block < 0 || coded[n].block >= layer.num_blocks) return;
      Block& block = blocks_[coded[n].block];
      decoders_[n] = Decoder::of(coded[n], tensors, layer.base_dim);
      if (!decoders_[n] || block.table || block.decoder || block.rows != coded[n].rows) return;
      if (decoders_[n]->dim != block.width || (!decoders_[n]->projection() && block.width != layer.base_dim)) return;
      block.decoder = &*decoders_[n];
      block.projection = block.decoder->projection();
    }
    fits_ = std::all_of(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.table || b.decoder; });
  }
  CodedLayer(const CodedLayer&) = delete;
  // Whether all blocks have rows; else nothing may be read.
  bool fits() const { return fits_; }
  const Layer& layer() const { return layer_; }

 private:
  Layer layer_;
  std::vector<Block> blocks_;
  std::vector<std::optional<Decoder>> decoders_;
  bool fits_ = false;
};

std::vector<Padded> pack_projections(const Layer& layer) {
  std::vector<Padded> packed(layer.num_blocks);
  for (int64_t b = 0; b < layer.num_blocks; ++b) {
    const Block& block = layer.blocks[b];
    if (block.projection) packed[b].copy(block.projection, block.width, layer.base_dim);
  }
  return packed;
}

// What one feature of a tile reads: a stored row of a block for each sample, or none.
struct TileRows {
  int64_t block[kTile];
  int64_t row[kTile];
};

// Returns false and says where if an id is out of range.
bool resolve(const Layer& layer, const Ids& ids, int64_t f, int64_t first, int64_t count, TileRows* tile,
             int64_t* bad) {
  for (int64_t s = 0; s < count; ++s) {
    const int64_t at = (first + s) * layer.num_features + f;
    tile->block[s] = find(layer, layer.features[f], ids.value(at), &tile->row[s]);
    if (tile->block[s] == kBad) {
      *bad = at;
      return false;
    }
    if (tile->block[s] >= 0) prefetch_stored(layer.blocks[tile->block[s]], tile->row[s]);
  }
  return true;
}

void write_tile(const Layer& layer, const std::vector<Padded>& packed, int64_t f, int64_t first, int64_t count,
                const TileRows& tile, std::vector<float>* decoded, float* out) {
  const Feature& feature = layer.features[f];
  const int64_t base_dim = layer.base_dim;
  const float* in[kTile];
  float* to[kTile];
  for (int64_t b = feature.first_block; b < feature.first_block + feature.num_blocks; ++b) {
    const Block& block = layer.blocks[b];
    if (block.decoder && block.projection) decoded->resize(count * block.width);
    int64_t found = 0;
    for (int64_t s = 0; s < count; ++s) {
      if (tile.block[s] != b) continue;
      to[found] = out + ((first + s) * layer.num_features + f) * base_dim;
      in[found] = stored_row(block, tile.row[s], block.projection ? decoded->data() + found * block.width : to[found]);
      ++found;
    }
    if (block.projection) {
      multiply_rows(in, block.width, packed[b].data(), packed[b].stride, to, base_dim, found, false);
    } else if (!block.decoder) {
      for (int64_t n = 0; n < found; ++n) std::memcpy(to[n], in[n], base_dim * sizeof(float));
    }
  }
  if (layer.has_padding) {
    for (int64_t s = 0; s < count; ++s) {
      float* row = out + ((first + s) * layer.num_features + f) * base_dim;
      if (tile.block[s] == kPadding) std::fill_n(row, base_dim, 0.0f);
    }
  }
}

// Looks up single ids of a tile, feature by feature. Returns false and says where if one is out of range.
bool lookup_tile(const Layer& layer, const std::vector<Padded>& packed, const Ids& ids, int64_t first, int64_t count,
                 float* out, int64_t* bad) {
  TileRows rows[2];  // of this feature, and of the next one, on its way from memory
  std::vector<float> decoded;
  if (!resolve(layer, ids, 0, first, count, &rows[0], bad)) return false;
  for (int64_t f = 0; f < layer.num_features; ++f) {
    if (f + 1 < layer.num_features && !resolve(layer, ids, f + 1, first, count, &rows[(f + 1) % 2], bad)) return false;
    write_tile(layer, packed, f, first, count, rows[f % 2], &decoded, out);
  }
  return true;
}

// sum += weight * row
inline void add_row(float* sum, const float* row, int64_t width, float weight) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) store(sum + c, load(sum + c) + weight * load(row + c));
  for (; c < width; ++c) sum[c] += weight * row[c];
}

// What the bags of one feature of a tile read: a stored row of a block for each value, or none.
struct BagRows {
  std::vector<int64_t> block, row;
  std::vector<int64_t> found;  // of each block of the feature: how many values are in it
  std::vector<float> sums;     // of stored rows, before they are projected
  std::vector<float> decoded;  // one row

  // Returns false and says where if an id is out of range. Every id is read once.
  bool resolve(const Layer& layer, const Feature& feature, const Ids& ids, int64_t begin, int64_t end, int64_t* bad) {
    block.resize(end - begin);
    row.resize(end - begin);
    found.assign(feature.num_blocks, 0);
    for (int64_t v = begin; v < end; ++v) {
      const int64_t b = block[v - begin] = find(layer, feature, ids.value(v), &row[v - begin]);
      if (b == kBad) {
        *bad = v;
        return false;
      }
      if (b == kPadding) continue;
      ++found[b - feature.first_block];
      prefetch_stored(layer.blocks[b], row[v - begin]);
    }
    return true;
  }
};

// Adds up the bags of one feature of a tile. Returns false and says where if an id is out of range.
bool sum_tile(const Layer& layer, const std::vector<Padded>& packed, const Ids& ids, int64_t f, int64_t first,
              int64_t count, BagRows* rows, float* out, int64_t* bad) {
  const Feature& feature = layer.features[f];
  const int64_t base_dim = layer.base_dim;
  const int64_t* offsets = ids.offsets + f * ids.batch + first;
  if (!rows->resolve(layer, feature, ids, offsets[0], offsets[count], bad)) return false;
  for (int64_t s = 0; s < count; ++s) {
    std::fill_n(out + ((first + s) * layer.num_features + f) * base_dim, base_dim, 0.0f);
  }
  for (int64_t b = feature.first_block; b < feature.first_block + feature.num_blocks; ++b) {
    if (rows->found[b - feature.first_block] == 0) continue;
    const Block& block = layer.blocks[b];
    if (block.projection) rows->sums.assign(count * block.width, 0.0f);
    if (block.decoder) rows->decoded.resize(block.width);
    const float* in[kTile];
    float* to[kTile];
    int64_t found = 0;
    for (int64_t s = 0; s < count; ++s) {
      float* row_out = out + ((first + s) * layer.num_features + f) * base_dim;
      float* sum = block.projection ? &rows->sums[s * block.width] : row_out;
      bool any = false;
      for (int64_t v = offsets[s]; v < offsets[s + 1]; ++v) {
        if (rows->block[v - offsets[0]] != b) continue;
        const float* row = stored_row(block, rows->row[v - offsets[0]], rows->decoded.data());
        add_row(sum, row, block.width, ids.weights ? ids.weights[v] : 1.0f);
        any = true;
      }
      if (any && block.projection) {
        in[found] = sum;
        to[found++] = row_out;
      }
    }
    if (found) {
      multiply_rows(in, block.width, packed[b].data(), packed[b].stride, to, base_dim, found, true);
    }
  }
  return true;
}

}  // namespace mixdim
