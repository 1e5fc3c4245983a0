// Owns the library's C interface: the model, and its parts alone for tests and benchmarks.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "model.h"

using namespace midstream;

extern "C" {

Model *ms_model_new(const Config *config, const Layer *layers, const Ends *ends, int num_threads) {
  return new Model(*config, layers, *ends, num_threads);
}

void ms_model_delete(Model *model) { delete model; }

void ms_model_step(Model *model, const Batch *batch) { model->step(*batch); }

// What bytes are multiplied with.
const char *ms_instruction_set() { return kInstructionSet; }

// On one thread: x [T, K], y [T, rows].
void ms_linear(const Linear *linear, const float *x, int num_tokens, float *y) {
  ActivationBuffer input;
  input.reserve(static_cast<size_t>(num_tokens) * linear->columns);
  for (int t = 0; t < num_tokens; t++) {
    const float *row = x + static_cast<size_t>(t) * linear->columns;
    put_row(row, linear->columns, linear->takes_floats(), input.get().row(t, linear->columns));
  }
  multiply(*linear, 0, linear->rows / kGroup, input.get(), num_tokens, {y, static_cast<size_t>(linear->rows)});
}

// Row `index` of the matrix: out [K].
void ms_row(const Linear *linear, int index, float *out) { dequantize_row(*linear, index, out); }

// On one thread: query, output [T, H * D]; keys, values [N, G, B, D] halves.
void ms_attend(const AttentionShape *shape, int num_tokens, int start, const int32_t *block_table, const float *query,
               const uint16_t *keys, const uint16_t *values, float *output) {
  const int context = start + num_tokens;
  const size_t stride = static_cast<size_t>(shape->num_heads) * shape->head_dim;
  std::vector<float> scratch(attention_scratch(*shape, context));
  const RowContext row{0, num_tokens, start, block_table};
  for (int tile = 0; tile < num_tokens; tile += kQueryTile) {
    for (int g = 0; g < shape->num_kv_heads; g++) {
      attend(*shape, row, g, tile, std::min(kQueryTile, num_tokens - tile), query, stride, keys, values, output, stride,
             scratch.data(), context);
    }
  }
}
}
