// Owns attention over the paged KV cache: it reads the block table itself. fp16 keys and values, fp32 sums.
//
// Cache of one layer: keys[block][kv_head][slot][D], values the same. A query's result is a sum over its context in
// order of position: it does not depend on the batch, on how prefill was cut, or on which thread computes it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace midstream {

struct AttentionShape {
  int num_heads;       // H
  int num_kv_heads;    // G
  int head_dim;        // D, a multiple of 8
  int block_size;      // B
  int sliding_window;  // 0: none
  float scale;
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
  return ((static_cast<size_t>(block) * shape.num_kv_heads + kv_head) * shape.block_size + slot) * shape.head_dim;
}

inline void widen(const uint16_t *halves, int count, float *out) {
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, load_halves(halves + i));
}

// Floats of scratch that one thread needs for contexts of up to `max_context` tokens.
inline size_t attention_scratch(const AttentionShape &shape, int max_context) {
  const size_t queries = static_cast<size_t>(kQueryTile) * (shape.num_heads / shape.num_kv_heads);
  const size_t block = (shape.block_size + 7) / 8 * 8;  // `score_keys` reads whole groups of 8 keys
  return queries * (max_context + kSlack) + block * shape.head_dim;
}

// scores[k] = scale * (q . keys[k]) for `count` keys of D floats; up to 7 entries more are written.
inline void score_keys(const float *q, const float *keys, int count, int D, float scale, float *scores) {
  for (int k = 0; k < count; k += 8) {
    __m256 acc[8];
    for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_ps();
    for (int d = 0; d < D; d += 8) {
      const __m256 part = _mm256_loadu_ps(q + d);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) acc[i] = _mm256_fmadd_ps(part, _mm256_loadu_ps(keys + (k + i) * D + d), acc[i]);
    }
    _mm256_storeu_ps(scores + k, _mm256_mul_ps(_mm256_set1_ps(scale), sum_lanes_of_8(acc)));
  }
}

// scores[0 ... count) become probabilities; entries up to the next multiple of 8 may be written.
inline void softmax(float *scores, int count) {
  float largest = scores[0];
  for (int i = 1; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
  for (int i = count; i < ((count + 7) & ~7); i++) scores[i] = -1e30f;
  __m256 total = _mm256_setzero_ps();
  for (int i = 0; i < count; i += 8) {
    const __m256 e = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(largest)));
    _mm256_storeu_ps(scores + i, e);
    total = _mm256_add_ps(total, e);
  }
  const __m256 inverse = _mm256_set1_ps(1.0f / sum_lanes(total));
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(scores + i, _mm256_mul_ps(_mm256_loadu_ps(scores + i), inverse));
}

// out[D] += the sum over k < count of weights[k] * values[k][D], `Width` vectors of D at a time.
template <int Width>
inline void add_weighted(float *out, const float *values, const float *weights, int count, int D) {
  __m256 acc[Width];
  for (int i = 0; i < Width; i++) acc[i] = _mm256_loadu_ps(out + 8 * i);
  for (int k = 0; k < count; k++) {
    const __m256 w = _mm256_set1_ps(weights[k]);
#pragma GCC unroll 8
    for (int i = 0; i < Width; i++) acc[i] = _mm256_fmadd_ps(w, _mm256_loadu_ps(values + k * D + 8 * i), acc[i]);
  }
  for (int i = 0; i < Width; i++) _mm256_storeu_ps(out + 8 * i, acc[i]);
}

inline void add_weighted(float *out, const float *values, const float *weights, int count, int D) {
  int d = 0;
  for (; d + 64 <= D; d += 64) add_weighted<8>(out + d, values + d, weights, count, D);
  for (; d + 32 <= D; d += 32) add_weighted<4>(out + d, values + d, weights, count, D);
  for (; d < D; d += 8) add_weighted<1>(out + d, values + d, weights, count, D);
}

// The queries [tile_start, tile_start + tile_size) of `row` under one kv head.
// query, output: [T, H * D] with `stride` floats a token. scratch: attention_scratch() floats.
inline void attend(const AttentionShape &shape, const RowContext &row, int kv_head, int tile_start, int tile_size,
                   const float *query, size_t query_stride, const uint16_t *keys, const uint16_t *values,
                   float *output, size_t output_stride, float *scratch, int max_context) {
  const int D = shape.head_dim, B = shape.block_size, heads = shape.num_heads / shape.num_kv_heads;
  const int last = row.start + tile_start + tile_size;  // one past the last position that any query here sees
  const int first_position = row.start + tile_start;
  const int begin = shape.sliding_window > 0 && first_position + 1 > shape.sliding_window ? first_position + 1 - shape.sliding_window : 0;
  const int from = begin / B * B;
  const size_t score_stride = max_context + kSlack;
  float *wide = scratch + static_cast<size_t>(kQueryTile) * heads * score_stride;  // [B, D]
  for (int p = from; p < last; p += B) {
    const int count = p + B < last ? B : last - p;
    widen(keys + kv_offset(shape, row.block_table[p / B], kv_head, 0), count * D, wide);
    for (int t = 0; t < tile_size; t++) {
      const float *q = query + (row.first_token + tile_start + t) * query_stride + static_cast<size_t>(kv_head) * heads * D;
      for (int h = 0; h < heads; h++) {
        float *scores = scratch + (t * heads + h) * score_stride;
        score_keys(q + h * D, wide, count, D, shape.scale, scores + p - from);
      }
    }
  }
  for (int t = 0; t < tile_size; t++) {
    const int seen = first_position + t + 1;
    const int lowest = shape.sliding_window > 0 && seen > shape.sliding_window ? seen - shape.sliding_window : 0;
    for (int h = 0; h < heads; h++) {
      float *scores = scratch + (t * heads + h) * score_stride;
      for (int k = 0; k < lowest - from; k++) scores[k] = -1e30f;
      softmax(scores, seen - from);
      float *out = output + (row.first_token + tile_start + t) * output_stride + (static_cast<size_t>(kv_head) * heads + h) * D;
      std::memset(out, 0, D * sizeof(float));
    }
  }
  for (int p = from; p < last; p += B) {
    const int count = p + B < last ? B : last - p;
    widen(values + kv_offset(shape, row.block_table[p / B], kv_head, 0), count * D, wide);
    for (int t = 0; t < tile_size; t++) {
      const int seen = first_position + t + 1 - p < count ? first_position + t + 1 - p : count;
      for (int h = 0; h < heads; h++) {
        const float *weights = scratch + (t * heads + h) * score_stride + (p - from);
        float *out = output + (row.first_token + tile_start + t) * output_stride + (static_cast<size_t>(kv_head) * heads + h) * D;
        add_weighted(out, wide, weights, seen, D);
      }
    }
  }
}

}  // namespace midstream
