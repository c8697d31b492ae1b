// A whole forward of a Llama-like decoder in one call.
#pragma once

#include "attention.h"
#include "gemm.h"
#include "pointwise.h"

namespace paceline {

// The structures below are mirrored by ctypes structures of the same names.
struct Layer {
  const float* input_norm;
  Weight qkv;
  const float* q_norm;  // per head, or null
  const float* k_norm;
  Weight o;
  const float* post_norm;
  Weight gate_up;
  Weight down;
  int64_t window;
};

struct Decoder {
  const Layer* layers;
  const uint8_t* embedding;
  const float* final_norm;
  const float* cos_sin;
  Weight lm_head;
  int32_t num_layers, hidden, heads, kv_heads, head_dim, ffn, rotary_dim, embedding_format;
  float eps, scale, cap, embedding_scale;
};

struct Batch {
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* slots;
  const int32_t* block_tables;
  const int32_t* cu_seqlens_q;
  const int32_t* seq_lens;
  const int64_t* logit_rows;
  float* logits;      // [num_logit_rows, vocab]
  float* hidden_out;  // [num_tokens, hidden] after the final norm, or null
  const KvCache* caches;
  float* workspace;
  int64_t table_stride;
  int32_t num_tokens, num_rows, num_logit_rows;
};

struct Scratch {
  std::vector<std::vector<float>> workers;
  AttentionPlan full, windowed;
};

inline int64_t workspace_floats(const Decoder& m, int64_t tokens) {
  int64_t qkv = int64_t(m.heads + 2 * m.kv_heads) * m.head_dim;
  int64_t mixed = std::max<int64_t>(m.hidden, int64_t(m.heads) * m.head_dim);
  return tokens * (m.hidden + mixed + qkv + m.ffn) + 64;
}

// Tokens of one chunk of a per-token loop: small batches are done by the caller alone, since
// handing out a microsecond of work costs more than doing it.
inline int token_chunk(int num_tokens, int num_threads) {
  return num_tokens <= 4 ? num_tokens : std::max(4, std::min(32, num_tokens / (2 * num_threads)));
}

template <class Body>
inline void each_token(Pool& pool, int num_tokens, Body&& body) {
  int step = std::max(1, token_chunk(num_tokens, pool.size()));
  pool.loop((num_tokens + step - 1) / step, [&](int chunk, int) {
    for (int t = chunk * step; t < std::min(num_tokens, (chunk + 1) * step); t++) body(t);
  });
}

inline void forward(Pool& pool, Scratch& scratch, const Decoder& m, const Batch& b) {
  const int tokens = b.num_tokens, h = m.hidden, d = m.head_dim;
  const int64_t q_size = int64_t(m.heads) * d, kv_size = int64_t(m.kv_heads) * d;
  const int64_t qkv_size = q_size + 2 * kv_size, mixed = std::max<int64_t>(h, q_size);
  float* residual = b.workspace;
  float* x = residual + int64_t(tokens) * h;
  float* qkv = x + int64_t(tokens) * mixed;
  float* act = qkv + int64_t(tokens) * qkv_size;

  AttentionArgs args{};
  args.q = qkv, args.out = x, args.block_tables = b.block_tables;
  args.cu_seqlens_q = b.cu_seqlens_q, args.seq_lens = b.seq_lens;
  args.q_stride = qkv_size, args.out_stride = q_size, args.table_stride = b.table_stride;
  args.rows = b.num_rows, args.heads = m.heads, args.kv_heads = m.kv_heads, args.head_dim = d;
  args.block_size = b.caches[0].block_size, args.format = b.caches[0].format;
  args.scale = m.scale, args.cap = m.cap;
  int planned_window = -1;
  scratch.full.build(args, pool.size());

  for (int index = 0; index < m.num_layers; index++) {
    const Layer& layer = m.layers[index];
    const KvCache& cache = b.caches[index];
    each_token(pool, tokens, [&](int t) {
      float* row = residual + int64_t(t) * h;
      if (index == 0) {
        embed_row(m.embedding, m.embedding_format, b.token_ids[t], h, row);
        if (m.embedding_scale != 1.0f)
          for (int i = 0; i < h; i++) row[i] *= m.embedding_scale;
      }
      rms_norm_row(row, nullptr, layer.input_norm, x + int64_t(t) * h, nullptr, h, m.eps);
    });
    product(pool, {layer.qkv, x, h, qkv, qkv_size, tokens, kStore});
    each_token(pool, tokens, [&](int t) {
      float *q = qkv + t * qkv_size, *k = q + q_size;
      const float* turn = m.cos_sin + b.positions[t] * m.rotary_dim;
      for (int head = 0; head < m.heads + m.kv_heads; head++) {
        float* at = q + int64_t(head) * d;
        const float* norm = head < m.heads ? layer.q_norm : layer.k_norm;
        if (norm) rms_norm_row(at, nullptr, norm, at, nullptr, d, m.eps);
        rotate_head(at, turn, m.rotary_dim);
      }
      write_token(cache, k, k + kv_size, b.slots[t]);
    });
    args.k_cache = cache.k, args.v_cache = cache.v, args.window = int32_t(layer.window);
    args.k_scale = cache.k_scale, args.v_scale = cache.v_scale;
    AttentionPlan* plan = &scratch.full;
    if (args.window > 0) {
      plan = &scratch.windowed;
      if (planned_window != args.window) plan->build(args, pool.size());
      planned_window = args.window;
    }
    attention(pool, args, *plan, scratch.workers);
    product(pool, {layer.o, x, q_size, residual, h, tokens, kAdd});
    each_token(pool, tokens, [&](int t) {
      rms_norm_row(residual + int64_t(t) * h, nullptr, layer.post_norm, x + int64_t(t) * h, nullptr,
                   h, m.eps);
    });
    product(pool, {layer.gate_up, x, h, act, m.ffn, tokens, kSiluMul});
    product(pool, {layer.down, act, m.ffn, residual, h, tokens, kAdd});
  }
  if (b.hidden_out) {
    each_token(pool, tokens, [&](int t) {
      rms_norm_row(residual + int64_t(t) * h, nullptr, m.final_norm, b.hidden_out + int64_t(t) * h,
                   nullptr, h, m.eps);
    });
  }
  if (b.num_logit_rows == 0) return;
  each_token(pool, b.num_logit_rows, [&](int r) {
    rms_norm_row(residual + b.logit_rows[r] * h, nullptr, m.final_norm, x + int64_t(r) * h, nullptr,
                 h, m.eps);
  });
  product(pool, {m.lm_head, x, h, b.logits, m.lm_head.n, b.num_logit_rows, kStore});
}

}  // namespace paceline
