// Owns attention over the paged KV cache: it reads the block table itself. fp16 keys and values, fp32 sums.
//
// Cache of one layer: keys[block][kv_head][slot][D] with `block_stride` halves a block, values the same. A query's result is a sum over its context in
// order of position: it does not depend on the batch, on how prefill was cut, or on which thread computes it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace midstream {

struct AttentionShape {
  int num_heads;       // H
  int num_kv_heads;    // G
  int head_dim;        // D, a multiple of 8
  int block_size;      // B
  int sliding_window;  // 0: none
  float scale;
  int64_t block_stride;  // halves from a block to the next
};

constexpr int kSlack = 16;     // floats after a row of scores that may be written
constexpr int kQueryTile = 4;  // query tokens that share one pass over the context

// One sequence's part of the batch.
struct RowContext {
  int first_token;           // its first query among the batch's tokens
  int num_tokens;            // its queries
  int start;                 // position of the first query
  const int32_t *block_table;
};

inline size_t kv_offset(const AttentionShape &shape, int block, int kv_head, int slot) {
  const size_t within = (static_cast<size_t>(kv_head) * shape.block_size + slot) * shape.head_dim;
  return block * static_cast<size_t>(shape.block_stride) + within;
}

constexpr int kMostQueries = kNumRegisters >= 32 ? 6 : 3;  // that share a key or value while it is in registers

// Floats of scratch that one thread needs for contexts of up to `max_context` tokens.
inline size_t attention_scratch(const AttentionShape &shape, int max_context) {
  return static_cast<size_t>(kQueryTile) * (shape.num_heads / shape.num_kv_heads) * (max_context + kSlack);
}

// Some queries (a token's heads, one token after the other) with their scores and outputs.
struct QueryGroup {
  const float *query;  // of the first head of the first token
  size_t query_stride;  // floats from a token to the next
  float *output;
  size_t output_stride;
  float *scores;
  size_t score_stride;  // floats from a query to the next
  int heads, head_dim;

  const float *query_of(int i) const { return query + i / heads * query_stride + i % heads * head_dim; }
  float *output_of(int i) const { return output + i / heads * output_stride + i % heads * head_dim; }
  float *scores_of(int i) const { return scores + i * score_stride; }
};

// Where a sequence's keys or values of one head lie.
struct PagedHead {
  const AttentionShape &shape;
  const uint16_t *cache;
  const int32_t *block_table;
  int kv_head;

  const uint16_t *block(int position) const {
    return cache + kv_offset(shape, block_table[position / shape.block_size], kv_head, 0);
  }

  // The block after it, to be fetched meanwhile: blocks lie anywhere, and the processor cannot guess where.
  const uint16_t *next_block(int position, int last) const {
    const int next = position + shape.block_size;
    return block(next < last ? next : position);
  }
};

// The scores of K keys of D halves for Q queries. A score's sum does not depend on Q or K.
template <int Q, int K>
inline void score(const float *const *query, const uint16_t *keys, int D, float scale, float *const *scores, int at) {
  Floats acc[Q][K];
  for (int i = 0; i < Q; i++) {
    for (int k = 0; k < K; k++) acc[i][k] = zero();
  }
  for (int d = 0; d < D; d += kLanes) {
    Floats part[Q];
    for (int i = 0; i < Q; i++) part[i] = load(query[i] + d);
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) {
      const Floats key = load_halves(keys + k * D + d);
#pragma GCC unroll 6
      for (int i = 0; i < Q; i++) acc[i][k] = fma(key, part[i], acc[i][k]);
    }
  }
  for (int i = 0; i < Q; i++) {
    if constexpr (K == 4) {
      store_sums_of_4(scores[i] + at, acc[i], scale);
    } else {
      scores[i][at] = scale * sum_lanes(acc[i][0]);
    }
  }
}

// The scores of all of `group` from query `first` on for the keys at positions [from, last).
template <int Q>
inline void score_all(const QueryGroup &group, int first, int num_queries, const PagedHead &keys, int from, int last) {
  const int D = group.head_dim, B = keys.shape.block_size;
  for (; first + Q <= num_queries; first += Q) {
    const float *query[Q];
    float *scores[Q];
    for (int i = 0; i < Q; i++) query[i] = group.query_of(first + i), scores[i] = group.scores_of(first + i) - from;
    for (int p = from; p < last; p += B) {
      const uint16_t *block = keys.block(p), *next = keys.next_block(p, last);
      const int count = p + B < last ? B : last - p;
      int k = 0;
      for (; k + 4 <= count; k += 4) {
        for (int line = 0; first == 0 && line < 4 * D; line += 32) prefetch(next + k * D + line);  // 32 halves
        score<Q, 4>(query, block + k * D, D, keys.shape.scale, scores, p + k);
      }
      for (; k < count; k++) score<Q, 1>(query, block + k * D, D, keys.shape.scale, scores, p + k);
    }
  }
  if constexpr (Q > 1) score_all<Q - 1>(group, first, num_queries, keys, from, last);
}

// scores[0 ... count) become probabilities; entries up to the next multiple of 8 may be written.
inline void softmax(float *scores, int count) {
  for (int i = count; i < ((count + 7) & ~7); i++) scores[i] = -1e30f;
  Floats most = broadcast(-1e30f);
  for (int i = 0; i < count; i += kLanes) most = max(most, load(scores + i));
  const Floats largest = broadcast(max_lanes(most));
  Floats total = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Floats e = exp_lanes(load(scores + i) - largest);
    store(scores + i, e);
    total = total + e;
  }
  const Floats inverse = broadcast(1.0f / sum_lanes(total));
  for (int i = 0; i < count; i += kLanes) store(scores + i, load(scores + i) * inverse);
}

// W vectors of the outputs of Q queries, from `d` on: the values at positions [from, last), weighted.
template <int Q, int W>
inline void mix(const QueryGroup &group, int first, const PagedHead &values, int d, int from, int last) {
  const int D = group.head_dim, B = values.shape.block_size;
  const float *weights[Q];
  Floats acc[Q][W];
  for (int i = 0; i < Q; i++) {
    weights[i] = group.scores_of(first + i) - from;
    for (int j = 0; j < W; j++) acc[i][j] = zero();
  }
  for (int p = from; p < last; p += B) {
    const uint16_t *value = values.block(p) + d, *next = values.next_block(p, last) + d;
    const int end = p + B < last ? p + B : last;
    for (int k = p; k < end; k++, value += D, next += D) {
      prefetch(next);
      Floats part[W];
      for (int j = 0; j < W; j++) part[j] = load_halves(value + kLanes * j);
#pragma GCC unroll 6
      for (int i = 0; i < Q; i++) {
        const Floats weight = broadcast(weights[i][k]);
#pragma GCC unroll 4
        for (int j = 0; j < W; j++) acc[i][j] = fma(weight, part[j], acc[i][j]);
      }
    }
  }
  for (int i = 0; i < Q; i++) {
    for (int j = 0; j < W; j++) store(group.output_of(first + i) + d + kLanes * j, acc[i][j]);
  }
}

template <int Q>
inline void mix_all(const QueryGroup &group, int first, int num_queries, const PagedHead &values, int from, int last) {
  const int D = group.head_dim;
  for (; first + Q <= num_queries; first += Q) {
    int d = 0;
    for (; d + 32 <= D; d += 32) mix<Q, 4>(group, first, values, d, from, last);
    for (; d < D; d += 8) mix<Q, 1>(group, first, values, d, from, last);
  }
  if constexpr (Q > 1) mix_all<Q - 1>(group, first, num_queries, values, from, last);
}

// The queries [tile_start, tile_start + tile_size) of `row` under one kv head.
// query, output: [T, H * D] with `stride` floats a token. scratch: attention_scratch() floats.
inline void attend(const AttentionShape &shape, const RowContext &row, int kv_head, int tile_start, int tile_size,
                   const float *query, size_t query_stride, const uint16_t *keys, const uint16_t *values,
                   float *output, size_t output_stride, float *scratch, int max_context) {
  const int D = shape.head_dim, B = shape.block_size, heads = shape.num_heads / shape.num_kv_heads;
  const size_t token = row.first_token + tile_start, head = static_cast<size_t>(kv_head) * heads * D;
  const QueryGroup group{query + token * query_stride + head, query_stride, output + token * output_stride + head, output_stride,
                         scratch, static_cast<size_t>(max_context) + kSlack, heads, D};
  const int num_queries = tile_size * heads, window = shape.sliding_window;
  const int first_position = row.start + tile_start, last = first_position + tile_size;
  const int from = (window > 0 && first_position + 1 > window ? first_position + 1 - window : 0) / B * B;
  const PagedHead key_blocks{shape, keys, row.block_table, kv_head}, value_blocks{shape, values, row.block_table, kv_head};
  score_all<kMostQueries>(group, 0, num_queries, key_blocks, from, last);
  for (int i = 0; i < num_queries; i++) {
    float *scores = group.scores_of(i);
    const int seen = first_position + i / heads + 1;
    const int lowest = window > 0 && seen > window ? seen - window : 0;
    for (int k = 0; k < lowest - from; k++) scores[k] = -1e30f;
    softmax(scores, seen - from);
    for (int k = seen - from; k < last - from; k++) scores[k] = 0;  // later tokens of the tile
  }
  mix_all<kMostQueries>(group, 0, num_queries, value_blocks, from, last);
}

}  // namespace midstream
