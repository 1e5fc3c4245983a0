// Owns a linear's input: integers with one scale for each 32 values, or plain floats, as its weights want them.
//
// Rounds to nearest, keeps -127 ... 127.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace midstream {

constexpr int kBlock = 32;  // values under one scale, in weights and activations alike

// One row of K values. Quantised, x[i] = scale[i / 32] * q[i]; else x[i] = values[i].
struct ActivationRow {
  int8_t *q;       // [K]
  float *scale;    // [K / 32]
  float *sum;      // [K / 32] scale * (q summed over the block), for weights with a minimum
  int32_t *minus8; // [K / 32] -8 * (q summed over the block), for weights stored 8 too high
  float *values;   // [K]
};

// Rows of K values, one after the other.
struct Activations {
  int8_t *q;
  float *scale, *sum;
  int32_t *minus8;
  float *values;

  ActivationRow row(int token, int columns) const {
    const size_t at = static_cast<size_t>(token) * columns, block = at / kBlock;
    return {q + at, scale + block, sum + block, minus8 + block, values + at};
  }
};

inline void quantize_block(const float *x, const ActivationRow &row, int block) {
  Floats v[4], most = zero();
  for (int i = 0; i < 4; i++) {
    v[i] = load(x + kLanes * i);
    most = max(most, absolute(v[i]));
  }
  const float largest = max_lanes(most);
  const Floats inverse = broadcast(largest > 0 ? 127.0f / largest : 0.0f);
  Ints n[4], total = broadcast(0);
  for (int i = 0; i < 4; i++) {
    n[i] = to_ints(v[i] * inverse);
    total = total + n[i];
  }
  store_as_bytes(row.q + block * kBlock, n);
  const int32_t sum = sum_lanes(total);
  row.scale[block] = largest / 127.0f;
  row.sum[block] = row.scale[block] * static_cast<float>(sum);
  row.minus8[block] = -8 * sum;
}

// The 32 values x as block `block` of `row`.
inline void put_block(const float *x, bool as_floats, const ActivationRow &row, int block) {
  if (as_floats) {
    std::memcpy(row.values + block * kBlock, x, kBlock * sizeof(float));
  } else {
    quantize_block(x, row, block);
  }
}

inline void put_row(const float *x, int num_values, bool as_floats, const ActivationRow &row) {
  for (int block = 0; block < num_values / kBlock; block++) put_block(x + block * kBlock, as_floats, row, block);
}

}  // namespace midstream
