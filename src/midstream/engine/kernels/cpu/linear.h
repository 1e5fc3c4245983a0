// Owns products of weights and activations: y = W x + b, integers by integers or floats by floats.
//
// A row's result is a sum over columns in order: it does not depend on what else is computed, nor by whom.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "simd.h"
#include "weights.h"

namespace midstream {

constexpr size_t kAhead = 2048;  // bytes of weights between what is fetched and what is used: memory's latency, in L1

// A tile is M tokens times H halves of one group's rows, from `half` on: as many as the registers hold.
constexpr int kMostTokens = 4;
template <int M>
constexpr int kHalves = kNumRegisters >= 32 || M == 1 ? 2 : 1;

// acc[h * M + m] = W[half + h] x[m] for quantised rows. `Type` fixes how a block is read.
template <WeightType Type, int M, int H>
inline void quantised_tile(const uint8_t *w, int half, int num_columns, const ActivationRow *x, bool fetches, Floats *acc) {
  constexpr bool is_nibbles = Type != WeightType::kQ8_0;
  constexpr int num_vectors = is_nibbles ? 4 : 8;
  constexpr int header = (Type == WeightType::kQ4_1 ? 4 : 2) * kGroup;
  constexpr size_t stride = header + 4 * kGroup * num_vectors;
  for (int block = 0; block < num_columns / kBlock; block++, w += stride) {
    Floats d[H], minimum[H];
    Bytes v[8 * H];  // for each j < 8 the halves' columns 4j ... 4j + 3, side by side
    for (int h = 0; h < H; h++) {
      const uint16_t *numbers = reinterpret_cast<const uint16_t *>(w) + (half + h) * kLanes;
      d[h] = load_halves(numbers);
      if constexpr (Type == WeightType::kQ4_1) minimum[h] = load_halves(numbers + kGroup);
      for (int j = 0; j < num_vectors; j++) {
        const Bytes bytes = load_bytes(w + header + 4 * (j * kGroup + (half + h) * kLanes));
        if constexpr (is_nibbles) {
          v[j * H + h] = low_nibbles(bytes);
          v[(j + 4) * H + h] = high_nibbles(bytes);
        } else {
          v[j * H + h] = prepare_signed(bytes);
        }
      }
    }
    for (size_t line = 0; fetches && line < stride; line += 64) prefetch(w + kAhead + line);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const int32_t *q = reinterpret_cast<const int32_t *>(x[m].q + block * kBlock);
      // What the sum is too high by when its weights are stored too high.
      const Ints start = broadcast(Type == WeightType::kQ4_1 ? 0 : x[m].minus8[block]);
      Ints total[H];
      is_nibbles ? dot_nibbles<H>(start, v, q, total) : dot_signed<H>(start, v, q, total);
      for (int h = 0; h < H; h++) {
        Floats &sum = acc[h * M + m];
        sum = fma(to_floats(total[h]), d[h] * broadcast(x[m].scale[block]), sum);
        if constexpr (Type == WeightType::kQ4_1) sum = fma(minimum[h], broadcast(x[m].sum[block]), sum);
      }
    }
  }
}

// The same for float rows. Even and odd columns are two sums, so that one's latency hides the other's.
template <WeightType Type, int M, int H>
inline void float_tile(const uint8_t *w, int half, int num_columns, const ActivationRow *x, Floats *acc) {
  Floats odd[H * M];
  for (Floats &sum : odd) sum = zero();
  for (int column = 0; column < num_columns; column += 2) {
    for (int h = 0; h < H; h++) {
      const Floats first = load_column<Type>(w, column, half + h), second = load_column<Type>(w, column + 1, half + h);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        acc[h * M + m] = fma(first, broadcast(x[m].values[column]), acc[h * M + m]);
        odd[h * M + m] = fma(second, broadcast(x[m].values[column + 1]), odd[h * M + m]);
      }
    }
  }
  for (int i = 0; i < H * M; i++) acc[i] = acc[i] + odd[i];
}

// Where results go: y[token * stride + row].
struct Output {
  float *y;
  size_t stride;
};

template <WeightType Type, int M, int H>
inline void tile(const Linear &linear, int group, int half, const Activations &x, int first, const Output &out) {
  const uint8_t *w = linear.packed + group * linear.bytes_per_group();
  ActivationRow rows[M];
  Floats acc[H * M];
  for (int m = 0; m < M; m++) rows[m] = x.row(first + m, linear.columns);
  for (Floats &sum : acc) sum = zero();
  if constexpr (Type >= WeightType::kF32) {
    float_tile<Type, M, H>(w, half, linear.columns, rows, acc);
  } else {
    quantised_tile<Type, M, H>(w, half, linear.columns, rows, first == 0, acc);
  }
  for (int h = 0; h < H; h++) {
    const int row = group * kGroup + (half + h) * kLanes;
    for (int m = 0; m < M; m++) {
      const Floats sum = acc[h * M + m];
      store(out.y + (first + m) * out.stride + row, linear.bias == nullptr ? sum : sum + load(linear.bias + row));
    }
  }
}

// Tiles of M tokens from `token` on while they fit before `stop`, then smaller ones.
template <WeightType Type, int M>
inline void tiles(const Linear &linear, int group, const Activations &x, int token, int stop, const Output &out) {
  for (; token + M <= stop; token += M) {
    for (int half = 0; half < 2; half += kHalves<M>) tile<Type, M, kHalves<M>>(linear, group, half, x, token, out);
  }
  if constexpr (M > 1) tiles<Type, M / 2>(linear, group, x, token, stop, out);
}

template <WeightType Type>
void multiply_groups(const Linear &linear, int begin, int end, const Activations &x, int num_tokens, const Output &out) {
  constexpr int kTokensInCache = 64;  // activations that stay in L2 while the groups pass by
  for (int start = 0; start < num_tokens; start += kTokensInCache) {
    const int stop = start + kTokensInCache < num_tokens ? start + kTokensInCache : num_tokens;
    for (int group = begin; group < end; group++) tiles<Type, kMostTokens>(linear, group, x, start, stop, out);
  }
}

// y[token, 16 * group ...] for the groups [begin, end) and all tokens.
inline void multiply(const Linear &linear, int begin, int end, const Activations &x, int num_tokens, const Output &out) {
  switch (linear.type) {
    case WeightType::kQ4_0: return multiply_groups<WeightType::kQ4_0>(linear, begin, end, x, num_tokens, out);
    case WeightType::kQ4_1: return multiply_groups<WeightType::kQ4_1>(linear, begin, end, x, num_tokens, out);
    case WeightType::kQ8_0: return multiply_groups<WeightType::kQ8_0>(linear, begin, end, x, num_tokens, out);
    case WeightType::kF32: return multiply_groups<WeightType::kF32>(linear, begin, end, x, num_tokens, out);
    case WeightType::kF16: return multiply_groups<WeightType::kF16>(linear, begin, end, x, num_tokens, out);
    case WeightType::kBF16: return multiply_groups<WeightType::kBF16>(linear, begin, end, x, num_tokens, out);
  }
}

}  // namespace midstream
