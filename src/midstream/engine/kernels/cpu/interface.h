// Owns what crosses the library's C interface: the model's shape and weights, and a step's batch. Points, never owns.
//
// `structs.py` declares the same, field for field.
#pragma once

#include <cstdint>

#include "elementwise.h"
#include "weights.h"

namespace midstream {

struct Config {
  int32_t num_layers, hidden, inner, num_heads, num_kv_heads, head_dim, vocab;
  int32_t block_size, max_positions;
  ActivationKind activation;
  float norm_eps, embedding_scale, attention_scale;
};

// A norm that the model does not have is null.
struct Layer {
  const float *input_norm;        // [E]
  const float *q_norm, *k_norm;   // [D]
  const float *attended_norm;     // [E] over what attention gives, before it is added
  const float *post_norm;         // [E] before the MLP
  const float *fed_norm;          // [E] over what the MLP gives, before it is added
  const float *cosines, *sines;   // [positions, D / 2]
  Linear qkv, o, gate_up, down;
  int32_t sliding_window;         // 0: none
};

struct Ends {
  const float *final_norm;        // [E]
  Linear embedding, head;         // [V, E]
  uint16_t *kv;                   // [N, L, 2, G, B, D] halves: a block that is used first faults in its own pages alone
};

struct Batch {
  int32_t num_tokens, num_rows, num_samples, max_blocks;
  const int32_t *token_ids;     // [T]
  const int32_t *first_token;   // [R + 1] where each row's tokens begin
  const int32_t *start;         // [R] position of each row's first token
  const int32_t *block_tables;  // [R, max_blocks]
  const int32_t *samples;       // [S] tokens whose logits are wanted
  float *logits;                // [S, V]
  int64_t *part_ns;             // [kNumParts] nanoseconds are added to it; null: nobody asks
};

// The parts of a step, in order; those between kEmbed and kFinalNorm once a layer.
enum Part { kEmbed, kQkv, kRotate, kAttend, kOut, kMlpNorm, kGateUp, kDown, kNextNorm, kFinalNorm, kHead, kNumParts };

}  // namespace midstream
