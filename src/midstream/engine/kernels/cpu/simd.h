// Owns the vectors that the kernels compute with, and what is written once on top of an instruction set's primitives.
//
// A vector has 8 lanes on every CPU, and a sum of lanes one order. `simd_avx2.h` and `simd_neon.h` give
//
//   Floats   8 floats, with + - * /         Ints   8 int32, with +         Bytes   32 bytes, 4 in each of 8 lanes
//
//   load, store, broadcast                  8 floats, or one in all lanes; no address needs to be aligned
//   load_halves, store_halves, load_bf16    8 numbers of 16 bits; a float is rounded to the nearest, ties to even
//   fma, fnma, min, max, absolute           fma(a, b, c) = a * b + c and fnma(a, b, c) = c - a * b, rounded once
//   round, to_ints, to_floats, power_of_2   nearest, ties to even; power_of_2 takes whole numbers
//   zero_below(limit, x, y)                 y, but 0 where x < limit
//   sum_lanes, max_lanes                    x -> ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)), and the largest
//   store_sums_of_4(p, x, factor)           p[i] = factor * sum_lanes(x[i]), i < 4
//   store_as_bytes(p, x)                    the 32 numbers x[0 ... 4), which all fit int8
//   load_bytes, low_nibbles, high_nibbles   32 bytes, and the halves of each
//   prepare_signed, dot_nibbles<H>, dot_signed<H>
//
// and `kNumRegisters`, the vectors that stay in registers, and `kInstructionSet`, its name. The dot products are the
// heart of a quantised linear. For h < H, with 4 bytes of v[j * H + h] in each lane and j < 8 words q of 4 bytes,
// -127 ... 127:
//
//   dot_nibbles(start, v, q, total)         total[h] = start + sum over j, i < 4 of v[j * H + h].byte(i) * q[j].byte(i)
//                                           v: 0 ... 15
//   dot_signed(minus8, v, q, total)         the same without start; v: -128 ... 127, each through prepare_signed;
//                                           minus8: -8 times the sum of q's bytes
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__ARM_NEON)
#include "simd_neon.h"
#else
#error "the kernels need AVX2 or NEON"
#endif

namespace midstream {

constexpr int kLanes = 8;

// Fetch the cache line of `p`, which may lie anywhere.
inline void prefetch(const void *p) { __builtin_prefetch(p); }

inline Floats zero() { return broadcast(0.0f); }

// e^x to about 1e-7 relative; below -87.3 it is 0. Source: Cephes' expf, the range reduced by log2.
inline Floats exp_lanes(Floats x) {
  const Floats lowest = broadcast(-87.3f), clamped = min(max(x, lowest), broadcast(88.0f));
  const Floats n = round(clamped * broadcast(1.44269504088896341f));
  Floats r = fnma(n, broadcast(0.693359375f), clamped);
  r = fnma(n, broadcast(-2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r + broadcast(1.0f));
  return zero_below(lowest, x, p * power_of_2(n));
}

}  // namespace midstream
