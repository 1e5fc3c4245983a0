// Owns the whole step: from token ids to logits in one call. Decides nothing: the batch comes laid out.
//
// Every thread walks through the same phases and takes pieces of each; a phase begins when the one before is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "interface.h"
#include "linear.h"
#include "pool.h"
#include "stopwatch.h"

namespace midstream {

// Room for the input of a linear, grown by the step.
class ActivationBuffer {
 public:
  void reserve(size_t num_values) {
    q_.resize(num_values);
    scale_.resize(num_values / kBlock);
    sum_.resize(num_values / kBlock);
    minus8_.resize(num_values / kBlock);
    values_.resize(num_values);
  }
  Activations get() { return {q_.data(), scale_.data(), sum_.data(), minus8_.data(), values_.data()}; }

 private:
  std::vector<int8_t> q_;
  std::vector<float> scale_, sum_, values_;
  std::vector<int32_t> minus8_;
};

class Model {
 public:
  Model(const Config &config, const Layer *layers, const Ends &ends, int num_threads)
      : config_(config),
        layers_(layers, layers + config.num_layers),
        ends_(ends),
        pool_(num_threads, kPhasesALayer * config.num_layers + 3),
        scratch_(num_threads) {
    for (auto &scratch : scratch_) scratch.resize(attention_scratch(shape(layers_[0]), config.max_positions));
  }

  void step(const Batch &batch) {
    reserve(std::max(batch.num_tokens, batch.num_samples));
    const Plan plan = lay_out_tiles(batch);
    pool_.run([this, batch, plan](Walk &walk) { forward(batch, plan, walk); });
  }

 private:
  using Walk = Pool::Walk;
  static constexpr int kPhasesALayer = 8;

  // Up to kQueryTile queries of one row.
  struct Tile {
    int row, start, size;
  };

  // What decides which phases there are; a copy, because a late thread may read it when the next step has begun.
  struct Plan {
    int num_tiles;
    bool rotates_first;  // some row has several tiles, and each attends to the keys of those before it
  };

  // --- the phases; what the buffers hold is looked at inside the pieces only ---

  void forward(const Batch &batch, const Plan plan, Walk &walk) {
    const int T = batch.num_tokens, E = config_.hidden;
    Stopwatch watch(walk.thread == 0 ? batch.part_ns : nullptr);
    each_token(walk, T, [&](int t) {
      embed(batch.token_ids[t], x(t));
      put_normed(x(t), layers_[0].input_norm, layers_[0].qkv, t);
    });
    watch.lap(kEmbed);
    for (size_t l = 0; l < layers_.size(); l++) {
      const Layer &layer = layers_[l];
      uint16_t *keys = ends_.kv + 2 * l * layer_kv_size(), *values = keys + layer_kv_size();
      multiply_all(walk, layer.qkv, normed_, T, [&] { return Output{qkv_.data(), qkv_size()}; });
      watch.lap(kQkv);
      if (plan.rotates_first) each_unit(walk, plan, [&](int unit, int) { rotate_and_store(batch, unit, layer, keys, values); });
      watch.lap(kRotate);
      each_unit(walk, plan, [&](int unit, int thread) {
        if (!plan.rotates_first) rotate_and_store(batch, unit, layer, keys, values);
        attend_unit(batch, unit, layer, keys, values, thread);
      });
      watch.lap(kAttend);
      multiply_all(walk, layer.o, attended_, T, [&] { return Output{branch_.data(), static_cast<size_t>(E)}; });
      watch.lap(kOut);
      each_token(walk, T, [&](int t) { add_branch(t, layer.attended_norm); put_normed(x(t), layer.post_norm, layer.gate_up, t); });
      watch.lap(kMlpNorm);
      gate_all(walk, layer, T);
      watch.lap(kGateUp);
      multiply_all(walk, layer.down, gated_, T, [&] { return Output{branch_.data(), static_cast<size_t>(E)}; });
      watch.lap(kDown);
      if (l + 1 < layers_.size()) {
        const Layer &next = layers_[l + 1];
        each_token(walk, T, [&](int t) { add_branch(t, layer.fed_norm); put_normed(x(t), next.input_norm, next.qkv, t); });
        watch.lap(kNextNorm);
      }
    }
    each_token(walk, batch.num_samples, [&](int s) {
      const int t = batch.samples[s];
      add_branch(t, layers_.back().fed_norm);
      put_normed(x(t), ends_.final_norm, ends_.head, s);
    });
    watch.lap(kFinalNorm);
    const size_t vocab = config_.vocab;
    multiply_all(walk, ends_.head, normed_, batch.num_samples, [&] { return Output{batch.logits, vocab}; });
    watch.lap(kHead);
  }

  template <typename Body>
  void each_token(Walk &walk, int num_tokens, const Body &body) {
    pool_.share(walk, num_tokens, 1, [&](int begin, int end) {
      for (int t = begin; t < end; t++) body(t);
    });
  }

  // A unit is one kv head of one tile.
  template <typename Body>
  void each_unit(Walk &walk, const Plan &plan, const Body &body) {
    pool_.share(walk, plan.num_tiles * config_.num_kv_heads, 1, [&](int begin, int end) {
      for (int unit = begin; unit < end; unit++) body(unit, walk.thread);
    });
  }

  template <typename Where>
  void multiply_all(Walk &walk, const Linear &linear, ActivationBuffer &input, int num_tokens, const Where &where) {
    const int groups = num_tokens > 0 ? linear.rows / kGroup : 0;
    pool_.share(walk, groups, piece_of(groups), [&](int begin, int end) {
      multiply(linear, begin, end, input.get(), num_tokens, where());
    });
  }

  // gate and up for 32 columns at a time, then activation(gate) * up while they are in the cache.
  void gate_all(Walk &walk, const Layer &layer, int num_tokens) {
    constexpr int kGroupsABlock = kBlock / kGroup;
    const int blocks = config_.inner / kBlock, up = config_.inner / kGroup;
    pool_.share(walk, num_tokens > 0 ? blocks : 0, piece_of(blocks), [&](int begin, int end) {
      const Output out{gate_up_.data(), 2 * static_cast<size_t>(config_.inner)};
      multiply(layer.gate_up, begin * kGroupsABlock, end * kGroupsABlock, normed_.get(), num_tokens, out);
      multiply(layer.gate_up, up + begin * kGroupsABlock, up + end * kGroupsABlock, normed_.get(), num_tokens, out);
      for (int t = 0; t < num_tokens; t++) {
        const float *gate = out.y + t * out.stride;
        for (int block = begin; block < end; block++) {
          float active[kBlock];
          gate_block(config_.activation, gate + block * kBlock, gate + config_.inner + block * kBlock, active);
          put_block(active, layer.down.takes_floats(), gated_.get().row(t, config_.inner), block);
        }
      }
    });
  }

  int piece_of(int count) const { return std::max(1, count / (pool_.num_threads() * 6)); }

  // --- the pieces ---

  void embed(int token_id, float *out) const {
    dequantize_row(ends_.embedding, token_id, out);
    if (config_.embedding_scale != 1.0f) scale(out, config_.embedding_scale, config_.hidden);
  }

  // The normed values of one token as row `t` of what `consumer` multiplies.
  void put_normed(const float *v, const float *weight, const Linear &consumer, int t) {
    normalise(v, weight, config_.hidden, config_.norm_eps, consumer.takes_floats(), normed_.get().row(t, config_.hidden));
  }

  void add_branch(int t, const float *norm) {
    float *branch = &branch_[static_cast<size_t>(t) * config_.hidden];
    if (norm != nullptr) normalise(branch, norm, config_.hidden, config_.norm_eps);
    add(x(t), branch, config_.hidden);
  }

  // The unit's queries and keys are rotated; its keys and values go into the cache.
  void rotate_and_store(const Batch &batch, int unit, const Layer &layer, uint16_t *keys, uint16_t *values) {
    const int G = config_.num_kv_heads, H = config_.num_heads, D = config_.head_dim, g = unit % G, heads = H / G;
    const Tile tile = tiles_[unit / G];
    const int32_t *table = batch.block_tables + static_cast<size_t>(tile.row) * batch.max_blocks;
    for (int i = tile.start; i < tile.start + tile.size; i++) {
      const int position = batch.start[tile.row] + i;
      float *row = &qkv_[(batch.first_token[tile.row] + i) * qkv_size()];
      float *key = row + (H + g) * D;
      for (int head = g * heads; head < (g + 1) * heads; head++) norm_and_rotate(row + head * D, layer.q_norm, layer, position);
      norm_and_rotate(key, layer.k_norm, layer, position);
      const size_t at = kv_offset(shape(layer), table[position / config_.block_size], g, position % config_.block_size);
      narrow(key, D, keys + at);
      narrow(row + (H + G + g) * D, D, values + at);
    }
  }

  void norm_and_rotate(float *head, const float *norm, const Layer &layer, int position) const {
    const int D = config_.head_dim;
    const size_t at = static_cast<size_t>(position) * (D / 2);
    if (norm != nullptr) normalise(head, norm, D, config_.norm_eps);
    rotate(head, layer.cosines + at, layer.sines + at, D / 2);
  }

  void attend_unit(const Batch &batch, int unit, const Layer &layer, const uint16_t *keys, const uint16_t *values, int thread) {
    const int G = config_.num_kv_heads, g = unit % G;
    const Tile tile = tiles_[unit / G];
    const int first = batch.first_token[tile.row];
    const RowContext context{first, batch.first_token[tile.row + 1] - first, batch.start[tile.row],
                             batch.block_tables + static_cast<size_t>(tile.row) * batch.max_blocks};
    attend(shape(layer), context, g, tile.start, tile.size, qkv_.data(), qkv_size(), keys, values, mixed_.data(), q_size(),
           scratch_[thread].data(), config_.max_positions);
    const int width = static_cast<int>(q_size()) / G;  // a multiple of 32
    for (int t = first + tile.start; t < first + tile.start + tile.size; t++) {
      for (int block = g * width / kBlock; block < (g + 1) * width / kBlock; block++) {
        put_block(&mixed_[t * q_size() + block * kBlock], layer.o.takes_floats(), attended_.get().row(t, q_size()), block);
      }
    }
  }

  Plan lay_out_tiles(const Batch &batch) {
    tiles_.clear();
    bool rotates_first = false;
    for (int row = 0; row < batch.num_rows; row++) {
      const int size = batch.first_token[row + 1] - batch.first_token[row];
      rotates_first |= size > kQueryTile;
      for (int start = 0; start < size; start += kQueryTile) tiles_.push_back({row, start, std::min(kQueryTile, size - start)});
    }
    return {static_cast<int>(tiles_.size()), rotates_first};
  }

  void reserve(int num_tokens) {
    if (num_tokens <= capacity_) return;
    capacity_ = num_tokens;
    const size_t T = num_tokens;
    x_.resize(T * config_.hidden);
    branch_.resize(T * config_.hidden);
    qkv_.resize(T * qkv_size());
    mixed_.resize(T * q_size());
    gate_up_.resize(T * 2 * config_.inner);
    normed_.reserve(T * config_.hidden);
    attended_.reserve(T * q_size());
    gated_.reserve(T * config_.inner);
  }

  AttentionShape shape(const Layer &layer) const {
    return {config_.num_heads,  config_.num_kv_heads,  config_.head_dim,
            config_.block_size, layer.sliding_window, config_.attention_scale,
            static_cast<int64_t>(2 * layers_.size() * layer_kv_size())};
  }

  // Halves of one block's keys, or values, in one layer.
  size_t layer_kv_size() const { return static_cast<size_t>(config_.num_kv_heads) * config_.block_size * config_.head_dim; }

  float *x(int t) { return &x_[static_cast<size_t>(t) * config_.hidden]; }
  size_t q_size() const { return static_cast<size_t>(config_.num_heads) * config_.head_dim; }
  size_t qkv_size() const { return q_size() + 2 * static_cast<size_t>(config_.num_kv_heads) * config_.head_dim; }

  const Config config_;
  const std::vector<Layer> layers_;
  const Ends ends_;
  Pool pool_;
  std::vector<Tile> tiles_;
  int capacity_ = 0;
  std::vector<float> x_, branch_, qkv_, mixed_, gate_up_;  // [T, ...]: the stream, and what is computed of it
  ActivationBuffer normed_, attended_, gated_;             // inputs of qkv, gate_up and head; of o; of down
  std::vector<std::vector<float>> scratch_;                // one for each thread
};

}  // namespace midstream
