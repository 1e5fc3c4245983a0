// Owns products of quantised weights and quantised activations. Weights are GGUF's own blocks, repacked without loss.
//
// 8 rows stand side by side, so that one vector holds the same 4 columns of 8 rows and a sum never crosses lanes:
//
//   group of 8 rows, block of 32 columns    Q4_0: d[8] halves | 128 bytes of nibbles                    = 144 bytes
//                                           Q4_1: d[8] | m[8] halves | 128 bytes of nibbles             = 160 bytes
//                                           Q8_0: d[8] halves | 256 bytes                               = 272 bytes
//   nibble byte 32j + 4r + i: columns 4j + i (low) and 16 + 4j + i (high) of row r, j < 4
//   byte 32j + 4r + i of Q8_0: column 4j + i of row r, j < 8
//
// A row's result is a sum over blocks in order: it does not depend on what else is computed, nor by whom.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "simd.h"

namespace midstream {

enum class WeightType : int32_t { kQ4_0 = 0, kQ4_1 = 1, kQ8_0 = 2 };

constexpr int kGroup = 8;  // weight rows that are computed together

inline size_t bytes_per_block(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0: return 144;
    case WeightType::kQ4_1: return 160;
    case WeightType::kQ8_0: return 272;
  }
  return 0;
}

struct Linear {
  const uint8_t *packed;
  WeightType type;
  int rows;  // a multiple of 8; the repacking pads with zero rows
  int columns;

  size_t bytes_per_group() const { return bytes_per_block(type) * (columns / kBlock); }
};

// `num_tokens` quantised rows, one after the other.
struct QuantBatch {
  int8_t *q;     // [tokens, K]
  float *scale;  // [tokens, K / 32]
  float *sum;    // [tokens, K / 32]

  QuantRow row(int token, int columns) const {
    const size_t blocks = static_cast<size_t>(token) * (columns / kBlock);
    return {q + static_cast<size_t>(token) * columns, scale + blocks, sum + blocks};
  }
};

// The tiles: M tokens times one group of 8 rows. `Type` fixes how a block is read.
template <WeightType Type, int M>
inline void tile(const uint8_t *w, int num_blocks, const QuantRow *x, float *const *y) {
  __m256 acc[M];
  for (int m = 0; m < M; m++) acc[m] = _mm256_setzero_ps();
  constexpr bool is_nibbles = Type != WeightType::kQ8_0;
  constexpr int num_vectors = is_nibbles ? 4 : 8;
  constexpr int header = Type == WeightType::kQ4_1 ? 32 : 16;
  constexpr size_t stride = header + 32 * num_vectors;
  const __m256i low = _mm256_set1_epi8(15);
  for (int block = 0; block < num_blocks; block++, w += stride) {
    const __m256 d = load_halves(reinterpret_cast<const uint16_t *>(w));
    __m256i v[8], magnitude[8];
    for (int j = 0; j < num_vectors; j++) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + header + 32 * j));
      if constexpr (is_nibbles) {
        v[j] = _mm256_and_si256(bytes, low);
        v[j + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
      } else {
        v[j] = bytes;
        magnitude[j] = _mm256_sign_epi8(bytes, bytes);
      }
    }
    if constexpr (M == 1) {
      // One token streams the weights once: far enough ahead to hide memory, near enough to stay in L1.
      for (size_t line = 0; line < stride; line += 64) _mm_prefetch(reinterpret_cast<const char *>(w) + 1024 + line, _MM_HINT_T0);
    }
    __m256 offset = _mm256_setzero_ps();
    if constexpr (Type == WeightType::kQ4_1) offset = load_halves(reinterpret_cast<const uint16_t *>(w) + kGroup);
    if constexpr (Type == WeightType::kQ4_0) offset = _mm256_mul_ps(d, _mm256_set1_ps(-8.0f));
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const int32_t *q = reinterpret_cast<const int32_t *>(x[m].q + block * kBlock);
      __m256i total;
      if constexpr (is_nibbles) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
        for (int j = 0; j < 8; j += 2) {
          even = dot_bytes(even, v[j], _mm256_set1_epi32(q[j]));
          odd = dot_bytes(odd, v[j + 1], _mm256_set1_epi32(q[j + 1]));
        }
        total = _mm256_add_epi32(even, odd);
#else
        // 8 products of at most 2 * 15 * 127 fit int16: one widening add a block instead of eight.
        __m256i pairs = _mm256_maddubs_epi16(v[0], _mm256_set1_epi32(q[0]));
        __m256i others = _mm256_maddubs_epi16(v[4], _mm256_set1_epi32(q[4]));
        for (int j = 1; j < 4; j++) {
          pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(v[j], _mm256_set1_epi32(q[j])));
          others = _mm256_add_epi16(others, _mm256_maddubs_epi16(v[j + 4], _mm256_set1_epi32(q[j + 4])));
        }
        total = _mm256_madd_epi16(_mm256_add_epi16(pairs, others), _mm256_set1_epi16(1));
#endif
      } else {
        total = _mm256_setzero_si256();
        for (int j = 0; j < 8; j++) {
          total = dot_bytes(total, magnitude[j], _mm256_sign_epi8(_mm256_set1_epi32(q[j]), v[j]));
        }
      }
      const __m256 product = _mm256_cvtepi32_ps(total);
      acc[m] = _mm256_fmadd_ps(product, _mm256_mul_ps(d, _mm256_set1_ps(x[m].scale[block])), acc[m]);
      if constexpr (is_nibbles) acc[m] = _mm256_fmadd_ps(offset, _mm256_set1_ps(x[m].sum[block]), acc[m]);
    }
  }
  for (int m = 0; m < M; m++) _mm256_storeu_ps(y[m], acc[m]);
}

template <WeightType Type, int M>
inline void tokens(const uint8_t *w, const Linear &linear, const QuantBatch &x, int first, float *y, size_t y_stride) {
  QuantRow rows[M];
  float *out[M];
  for (int m = 0; m < M; m++) {
    rows[m] = x.row(first + m, linear.columns);
    out[m] = y + static_cast<size_t>(first + m) * y_stride;
  }
  tile<Type, M>(w, linear.columns / kBlock, rows, out);
}

// y[token, 8 * group ...] for the groups [begin, end) and all tokens. y_stride: floats from one token to the next.
template <WeightType Type>
void multiply_groups(const Linear &linear, int begin, int end, const QuantBatch &x, int num_tokens, float *y, size_t y_stride) {
  constexpr int kTokensInCache = 64;  // quantised activations that stay in L2 while the groups pass by
  for (int start = 0; start < num_tokens; start += kTokensInCache) {
    const int stop = start + kTokensInCache < num_tokens ? start + kTokensInCache : num_tokens;
    for (int group = begin; group < end; group++) {
      const uint8_t *w = linear.packed + group * linear.bytes_per_group();
      float *out = y + group * kGroup;
      int token = start;
      for (; token + 4 <= stop; token += 4) tokens<Type, 4>(w, linear, x, token, out, y_stride);
      for (; token + 2 <= stop; token += 2) tokens<Type, 2>(w, linear, x, token, out, y_stride);
      for (; token < stop; token++) tokens<Type, 1>(w, linear, x, token, out, y_stride);
    }
  }
}

inline void multiply(const Linear &linear, int begin, int end, const QuantBatch &x, int num_tokens, float *y, size_t y_stride) {
  switch (linear.type) {
    case WeightType::kQ4_0: return multiply_groups<WeightType::kQ4_0>(linear, begin, end, x, num_tokens, y, y_stride);
    case WeightType::kQ4_1: return multiply_groups<WeightType::kQ4_1>(linear, begin, end, x, num_tokens, y, y_stride);
    case WeightType::kQ8_0: return multiply_groups<WeightType::kQ8_0>(linear, begin, end, x, num_tokens, y, y_stride);
  }
}

// One row of a group as floats: out[K].
inline void dequantize_lane(const Linear &linear, const uint8_t *w, int lane, float *out) {
  const size_t stride = bytes_per_block(linear.type);
  for (int block = 0; block < linear.columns / kBlock; block++, w += stride, out += kBlock) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(w);
    const float d = _cvtsh_ss(halves[lane]);
    if (linear.type == WeightType::kQ8_0) {
      const int8_t *q = reinterpret_cast<const int8_t *>(w + 16) + 4 * lane;
      for (int i = 0; i < kBlock; i++) out[i] = d * q[32 * (i / 4) + i % 4];
      continue;
    }
    const bool has_minimum = linear.type == WeightType::kQ4_1;
    const float offset = has_minimum ? _cvtsh_ss(halves[kGroup + lane]) : -8.0f * d;
    const uint8_t *q = w + (has_minimum ? 32 : 16) + 4 * lane;
    for (int i = 0; i < kBlock / 2; i++) {
      const uint8_t both = q[32 * (i / 4) + i % 4];
      out[i] = d * (both & 15) + offset;
      out[i + 16] = d * (both >> 4) + offset;
    }
  }
}

}  // namespace midstream
