// Owns what happens to a token's values between two products: norms, rotation, the gated activation.
//
// All sizes are multiples of 8.
#pragma once

#include <cmath>
#include <cstdint>

#include "activations.h"
#include "simd.h"

namespace midstream {

enum class ActivationKind : int32_t { kSilu = 0, kGeluTanh = 1 };

inline void add(float *x, const float *y, int n) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i) + load(y + i));
}

inline void scale(float *x, float factor, int n) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i) * broadcast(factor));
}

// 1 / the root mean square.
inline float inverse_rms(const float *x, int n, float eps) {
  Floats squares = zero();
  for (int i = 0; i < n; i += kLanes) {
    const Floats u = load(x + i);
    squares = fma(u, u, squares);
  }
  return 1.0f / std::sqrt(sum_lanes(squares) / n + eps);
}

inline void normalise_into(const float *x, float inverse, const float *weight, int n, float *out) {
  for (int i = 0; i < n; i += kLanes) store(out + i, load(x + i) * broadcast(inverse) * load(weight + i));
}

// RMS norm in place. Source: Zhang and Sennrich, NeurIPS 2019.
inline void normalise(float *x, const float *weight, int n, float eps) {
  normalise_into(x, inverse_rms(x, n, eps), weight, n, x);
}

// RMS norm as the input of a product.
inline void normalise(const float *x, const float *weight, int n, float eps, bool as_floats, const ActivationRow &row) {
  const float inverse = inverse_rms(x, n, eps);
  for (int block = 0; block < n / kBlock; block++) {
    float out[kBlock];
    normalise_into(x + block * kBlock, inverse, weight + block * kBlock, kBlock, out);
    put_block(out, as_floats, row, block);
  }
}

// Rotary embedding of one head: its halves are the pairs. cosine, sine: [half].
inline void rotate(float *v, const float *cosine, const float *sine, int half) {
  for (int i = 0; i < half; i++) {
    const float a = v[i], b = v[i + half];
    v[i] = a * cosine[i] - b * sine[i];
    v[i + half] = b * cosine[i] + a * sine[i];
  }
}

inline void narrow(const float *v, int n, uint16_t *out) {
  for (int i = 0; i < n; i += kLanes) store_halves(out + i, load(v + i));
}

// Both are x * sigmoid(u): u = x for SiLU, u = 2 sqrt(2 / pi) (x + 0.044715 x^3) for GELU's tanh form.
template <ActivationKind Kind>
inline Floats activate(Floats x) {
  Floats u = x;
  if constexpr (Kind == ActivationKind::kGeluTanh) {
    const Floats cubic = broadcast(0.044715f) * (x * x);
    u = broadcast(1.5957691216057308f) * fma(cubic, x, x);
  }
  return x / (broadcast(1.0f) + exp_lanes(zero() - u));
}

template <ActivationKind Kind>
inline void gate_block(const float *gate, const float *up, float *out) {
  for (int i = 0; i < kBlock; i += kLanes) store(out + i, activate<Kind>(load(gate + i)) * load(up + i));
}

// activation(gate) * up for 32 values.
inline void gate_block(ActivationKind kind, const float *gate, const float *up, float *out) {
  if (kind == ActivationKind::kSilu) return gate_block<ActivationKind::kSilu>(gate, up, out);
  gate_block<ActivationKind::kGeluTanh>(gate, up, out);
}

}  // namespace midstream
