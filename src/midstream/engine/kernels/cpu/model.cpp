// Owns the whole step: from token ids to logits in one call. Decides nothing: the batch comes laid out.
//
// Every thread walks through the same phases and takes pieces of each; a phase begins when the one before is done.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pool.h"

namespace midstream {

struct Config {
  int32_t num_layers, hidden, inner, num_heads, num_kv_heads, head_dim, vocab;
  int32_t block_size, sliding_window, max_positions;
  float norm_eps;
};

struct Batch {
  int32_t num_tokens, num_rows, num_samples, max_blocks;
  const int32_t *token_ids;     // [T]
  const int32_t *first_token;   // [R + 1] where each row's tokens begin
  const int32_t *start;         // [R] position of each row's first token
  const int32_t *block_tables;  // [R, max_blocks]
  const int32_t *samples;       // [S] tokens whose logits are wanted
  float *logits;                // [S, V]
};

struct Layer {
  const float *input_norm, *post_norm;  // [E]
  Linear qkv, o, gate_up, down;
};

class Model {
 public:
  Model(const Config &config, int num_threads)
      : layers(config.num_layers), config_(config), pool_(num_threads, kPhasesALayer * config.num_layers + 3) {
    shape_ = {config.num_heads,  config.num_kv_heads,   config.head_dim,
              config.block_size, config.sliding_window, 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
    scratch_.resize(num_threads);
    for (auto &scratch : scratch_) scratch.resize(attention_scratch(shape_, config.max_positions));
  }

  std::vector<Layer> layers;
  const float *final_norm = nullptr;                 // [E]
  Linear embedding{}, head{};                        // [V, E]
  const float *cosines = nullptr, *sines = nullptr;  // [positions, D / 2]
  uint16_t *kv = nullptr;                            // [L, 2, N, G, B, D] halves
  int64_t kv_stride = 0;                             // halves from a layer's keys to its values

  void step(const Batch &batch) {
    reserve(std::max(batch.num_tokens, batch.num_samples));
    lay_out_tiles(batch);
    const int num_tiles = static_cast<int>(tiles_.size());
    pool_.run([this, batch, num_tiles](Walk &walk) { forward(batch, num_tiles, walk); });
  }

 private:
  using Walk = Pool::Walk;
  static constexpr int kPhasesALayer = 10;

  // Up to kQueryTile queries of one row.
  struct Tile {
    int row, start, size;
  };

  template <typename Body>
  void each_token(Walk &walk, int num_tokens, const Body &body) {
    pool_.share(walk, num_tokens, 1, [&](int begin, int end) {
      for (int t = begin; t < end; t++) body(t);
    });
  }

  // y [T, stride]; what the buffers hold is looked at inside the pieces only.
  void multiply_all(Walk &walk, const Linear &linear, int num_tokens, std::vector<float> &y, int stride) {
    multiply_into(walk, linear, num_tokens, [&y] { return y.data(); }, stride);
  }

  template <typename Output>
  void multiply_into(Walk &walk, const Linear &linear, int num_tokens, const Output &output, int stride) {
    const int groups = num_tokens > 0 ? linear.rows / kGroup : 0;
    const int piece = std::max(1, groups / (pool_.num_threads() * 6));
    pool_.share(walk, groups, piece,
                [&](int begin, int end) { multiply(linear, begin, end, quantised(), num_tokens, output(), stride); });
  }

  void forward(const Batch &batch, int num_tiles, Walk &walk) {
    const int T = batch.num_tokens;
    each_token(walk, T, [&](int t) {
      embed(batch.token_ids[t], x(t));
      normalise(x(t), layers[0].input_norm, t);
    });
    for (size_t l = 0; l < layers.size(); l++) {
      const Layer &layer = layers[l];
      multiply_all(walk, layer.qkv, T, qkv_, qkv_size());
      uint16_t *keys = kv + 2 * l * kv_stride, *values = keys + kv_stride;
      rotate_all(walk, batch, num_tiles, keys, values);
      attend_all(walk, batch, num_tiles, keys, values);
      multiply_all(walk, layer.o, T, projected_, config_.hidden);
      each_token(walk, T, [&](int t) { add_and_normalise(t, layer.post_norm); });
      multiply_all(walk, layer.gate_up, T, gate_up_, 2 * config_.inner);
      activate_all(walk, T);
      multiply_all(walk, layer.down, T, projected_, config_.hidden);
      if (l + 1 < layers.size()) each_token(walk, T, [&](int t) { add_and_normalise(t, layers[l + 1].input_norm); });
    }
    each_token(walk, batch.num_samples, [&](int s) {
      const int t = batch.samples[s];
      add(x(t), &projected_[static_cast<size_t>(t) * config_.hidden], config_.hidden);
      normalise(x(t), final_norm, s);
    });
    multiply_into(walk, head, batch.num_samples, [&] { return batch.logits; }, config_.vocab);
  }

  void rotate_all(Walk &walk, const Batch &batch, int num_tiles, uint16_t *keys, uint16_t *values) {
    pool_.share(walk, num_tiles, 1, [&](int begin, int end) {
      for (int index = begin; index < end; index++) {
        const Tile tile = tiles_[index];
        const int32_t *table = batch.block_tables + static_cast<size_t>(tile.row) * batch.max_blocks;
        for (int i = tile.start; i < tile.start + tile.size; i++) {
          rotate_and_store(batch.first_token[tile.row] + i, batch.start[tile.row] + i, table, keys, values);
        }
      }
    });
  }

  void attend_all(Walk &walk, const Batch &batch, int num_tiles, const uint16_t *keys, const uint16_t *values) {
    // A unit is one kv head of one tile.
    const int G = config_.num_kv_heads;
    pool_.share(walk, num_tiles * G, 1, [&](int begin, int end) {
      for (int unit = begin; unit < end; unit++) {
        const Tile tile = tiles_[unit / G];
        const int first = batch.first_token[tile.row];
        const RowContext context{first, batch.first_token[tile.row + 1] - first, batch.start[tile.row],
                                 batch.block_tables + static_cast<size_t>(tile.row) * batch.max_blocks};
        attend(shape_, context, unit % G, tile.start, tile.size, qkv_.data(), qkv_size(), keys, values,
               attended_.data(), q_size(), scratch_[walk.thread].data(), config_.max_positions);
      }
    });
    each_token(walk, batch.num_tokens, [&](int t) {
      quantize_row(&attended_[static_cast<size_t>(t) * q_size()], q_size(), quantised().row(t, q_size()));
    });
  }

  void lay_out_tiles(const Batch &batch) {
    tiles_.clear();
    for (int row = 0; row < batch.num_rows; row++) {
      const int size = batch.first_token[row + 1] - batch.first_token[row];
      for (int start = 0; start < size; start += kQueryTile) tiles_.push_back({row, start, std::min(kQueryTile, size - start)});
    }
  }

  void activate_all(Walk &walk, int T) {
    const int blocks = config_.inner / kBlock;
    const int piece = std::max(1, T * blocks / (pool_.num_threads() * 4));
    pool_.share(walk, T * blocks, piece, [&](int begin, int end) {
      for (int unit = begin; unit < end; unit++) activate(unit / blocks, unit % blocks);
    });
  }

  // silu(gate) * up for one block of 32, quantised for the product that follows.
  void activate(int t, int block) {
    const float *gate = &gate_up_[static_cast<size_t>(t) * 2 * config_.inner + block * kBlock];
    const float *up = gate + config_.inner;
    float out[kBlock];
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 g = _mm256_loadu_ps(gate + i);
      const __m256 e = exp_lanes(_mm256_sub_ps(_mm256_setzero_ps(), g));
      const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
      _mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
    const QuantRow row = quantised().row(t, config_.inner);
    quantize_block(out, row.q + block * kBlock, row.scale + block, row.sum + block);
  }

  // Rotary embedding of queries and keys (the halves of D are the pairs), then keys and values into the cache.
  void rotate_and_store(int t, int position, const int32_t *block_table, uint16_t *keys, uint16_t *values) {
    const int D = config_.head_dim, H = config_.num_heads, G = config_.num_kv_heads;
    float *row = &qkv_[static_cast<size_t>(t) * qkv_size()];
    const float *cosine = cosines + static_cast<size_t>(position) * (D / 2);
    const float *sine = sines + static_cast<size_t>(position) * (D / 2);
    for (int head = 0; head < H + G; head++) rotate(row + head * D, cosine, sine, D / 2);
    const int block = block_table[position / config_.block_size], slot = position % config_.block_size;
    for (int g = 0; g < G; g++) {
      const size_t at = kv_offset(shape_, block, g, slot);
      narrow(row + (H + g) * D, D, keys + at);
      narrow(row + (H + G + g) * D, D, values + at);
    }
  }

  static void rotate(float *v, const float *cosine, const float *sine, int half) {
    for (int i = 0; i < half; i++) {
      const float a = v[i], b = v[i + half];
      v[i] = a * cosine[i] - b * sine[i];
      v[i + half] = b * cosine[i] + a * sine[i];
    }
  }

  static void narrow(const float *v, int count, uint16_t *out) {
    for (int i = 0; i < count; i += 8) store_halves(out + i, _mm256_loadu_ps(v + i));
  }

  void embed(int token_id, float *out) const {
    const int lane = token_id % kGroup;
    const uint8_t *w = embedding.packed + token_id / kGroup * embedding.bytes_per_group();
    dequantize_lane(embedding, w, lane, out);
  }

  static void add(float *x, const float *y, int count) {
    for (int i = 0; i < count; i += 8) _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }

  void add_and_normalise(int t, const float *weight) {
    add(x(t), &projected_[static_cast<size_t>(t) * config_.hidden], config_.hidden);
    normalise(x(t), weight, t);
  }

  // RMS norm of one token into row `t` of the quantised batch.
  void normalise(const float *v, const float *weight, int t) {
    const int E = config_.hidden;
    __m256 squares = _mm256_setzero_ps();
    for (int i = 0; i < E; i += 8) {
      const __m256 u = _mm256_loadu_ps(v + i);
      squares = _mm256_fmadd_ps(u, u, squares);
    }
    const __m256 inverse = _mm256_set1_ps(1.0f / std::sqrt(sum_lanes(squares) / E + config_.norm_eps));
    const QuantRow row = quantised().row(t, E);
    for (int block = 0; block < E / kBlock; block++) {
      float out[kBlock];
      for (int i = 0; i < kBlock; i += 8) {
        const __m256 u = _mm256_mul_ps(_mm256_loadu_ps(v + block * kBlock + i), inverse);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(u, _mm256_loadu_ps(weight + block * kBlock + i)));
      }
      quantize_block(out, row.q + block * kBlock, row.scale + block, row.sum + block);
    }
  }

  void reserve(int num_tokens) {
    if (num_tokens <= capacity_) return;
    capacity_ = num_tokens;
    const size_t T = num_tokens, widest = std::max({config_.hidden, config_.inner, q_size()});
    x_.resize(T * config_.hidden);
    projected_.resize(T * config_.hidden);
    qkv_.resize(T * qkv_size());
    attended_.resize(T * q_size());
    gate_up_.resize(T * 2 * config_.inner);
    q_.resize(T * widest);
    scale_.resize(T * widest / kBlock);
    sum_.resize(T * widest / kBlock);
  }

  float *x(int t) { return &x_[static_cast<size_t>(t) * config_.hidden]; }
  QuantBatch quantised() { return {q_.data(), scale_.data(), sum_.data()}; }
  int q_size() const { return config_.num_heads * config_.head_dim; }
  int qkv_size() const { return q_size() + 2 * config_.num_kv_heads * config_.head_dim; }

  const Config config_;
  AttentionShape shape_;
  Pool pool_;
  std::vector<Tile> tiles_;
  int capacity_ = 0;
  std::vector<float> x_, projected_, qkv_, attended_, gate_up_, scale_, sum_;
  std::vector<int8_t> q_;
  std::vector<std::vector<float>> scratch_;
};

}  // namespace midstream

using namespace midstream;

extern "C" {

Model *ms_model_new(const Config *config, int num_threads) { return new Model(*config, num_threads); }

void ms_model_delete(Model *model) { delete model; }

void ms_model_set_layer(Model *model, int index, const float *input_norm, const float *post_norm, const Linear *linears) {
  model->layers[index] = {input_norm, post_norm, linears[0], linears[1], linears[2], linears[3]};
}

void ms_model_set_ends(Model *model, const Linear *embedding, const Linear *head, const float *final_norm,
                       const float *cosines, const float *sines, uint16_t *kv, int64_t kv_stride) {
  model->embedding = *embedding;
  model->head = *head;
  model->final_norm = final_norm;
  model->cosines = cosines;
  model->sines = sines;
  model->kv = kv;
  model->kv_stride = kv_stride;
}

void ms_model_step(Model *model, const Batch *batch) { model->step(*batch); }

// The parts alone, on one thread, for tests and benchmarks: x [T, K] floats, y [T, rows].
void ms_linear(const Linear *linear, const float *x, int num_tokens, float *y) {
  const size_t values = static_cast<size_t>(num_tokens) * linear->columns;
  std::vector<int8_t> q(values);
  std::vector<float> scale(values / kBlock), sum(values / kBlock);
  const QuantBatch batch{q.data(), scale.data(), sum.data()};
  for (int t = 0; t < num_tokens; t++) {
    quantize_row(x + static_cast<size_t>(t) * linear->columns, linear->columns, batch.row(t, linear->columns));
  }
  multiply(*linear, 0, linear->rows / kGroup, batch, num_tokens, y, linear->rows);
}

// query, output [T, H * D]; keys, values [N, G, B, D] halves.
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
