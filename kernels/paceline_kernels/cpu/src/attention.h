// Attention over the paged cache: prefill chunks and decodes by one routine.
//
// An item is one row, one KV head and a few of the row's queries: all query heads of the group are
// computed together, so keys and values are read once for the group. Long contexts of few items are
// split, and whoever finishes the last part of an item merges the parts.
//
// Keys lie in a block as [kv_heads, head_dim, block_size]: scores of neighbouring tokens are lanes
// of one vector, no sums across lanes. Values lie as [kv_heads, block_size, head_dim].
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attention_plan.h"
#include "pool.h"
#include "vec.h"

namespace paceline {

constexpr int kTileTokens = 64;  // context tokens scored at a time (at least one block)
constexpr float kNone = -std::numeric_limits<float>::infinity();

// scores[i][j] = q row i . key j of one block, for NV vectors of keys from column `at`.
template <int L, int F, int MR, int NV>
inline void score(const float* q, int d, const uint8_t* keys, int block_size, int at, float* scores,
                  int stride) {
  vf<L> c[MR][NV] = {};
  for (int k = 0; k < d; k++) {
    vf<L> b[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) b[j] = load_as<L, F>(keys, int64_t(k) * block_size + at + j * L);
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++) {
      float x = q[i * d + k];
#pragma GCC unroll 2
      for (int j = 0; j < NV; j++) c[i][j] += b[j] * x;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) store<L>(scores + i * stride + at + j * L, c[i][j]);
}

// The values of one tile: block by block, tokens [from, to) of the whole tile count.
struct Values {
  const uint8_t* blocks[kTileTokens / 8];
  int num_blocks, block_size, from, to;
};

// out[i][at..] += sum over the tile's tokens t of p[i][t] * value t, for NV vectors.
template <int L, int F, int MR, int NV>
inline void mix(const float* p, int stride, const Values& values, int d, int at, float* out) {
  vf<L> c[MR][NV];
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) c[i][j] = load<L>(out + i * d + at + j * L);
  for (int block = 0; block < values.num_blocks; block++) {
    int base = block * values.block_size;
    int begin = std::max(values.from, base), end = std::min(values.to, base + values.block_size);
    const uint8_t* rows = values.blocks[block];
    for (int t = begin; t < end; t++) {
      vf<L> b[NV];
#pragma GCC unroll 2
      for (int j = 0; j < NV; j++)
        b[j] = load_as<L, F>(rows, int64_t(t - base) * d + at + j * L);
#pragma GCC unroll 6
      for (int i = 0; i < MR; i++) {
        float x = p[i * stride + t];
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) c[i][j] += b[j] * x;
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) store<L>(out + i * d + at + j * L, c[i][j]);
}

// Blocks lie anywhere in memory, each about a page: the hardware's prefetcher starts anew at every
// one, so what comes next is asked for while the present one is computed.
inline void draw_near(const uint8_t* from, int64_t size) {
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(from + at, 0, 3);
}

template <int L, int F, int MR>
inline void score_block(const float* q, int d, const uint8_t* keys, int block_size, float* scores,
                        int stride) {
  int at = 0;
  for (; at + 2 * L <= block_size; at += 2 * L)
    score<L, F, MR, 2>(q, d, keys, block_size, at, scores, stride);
  if (at < block_size) score<L, F, MR, 1>(q, d, keys, block_size, at, scores, stride);
}

template <int L, int F, int MR>
inline void mix_tile(const float* p, int stride, const Values& values, int d, float* out) {
  int at = 0;
  for (; at + 2 * L <= d; at += 2 * L) mix<L, F, MR, 2>(p, stride, values, d, at, out);
  if (at < d) mix<L, F, MR, 1>(p, stride, values, d, at, out);
}

// to = from * factor; n is a multiple of L.
template <int L>
inline void scale_to(float* to, const float* from, float factor, int n) {
  for (int j = 0; j < n; j += L) store<L>(to + j, load<L>(from + j) * factor);
}

template <int L>
inline vf<L> tanh(vf<L> x) {
  vf<L> z = x * x;
  vf<L> p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  vf<L> near = p * z * x + x;
  vf<L> size = x < 0.0f ? -x : x;
  vf<L> far = 1.0f - 2.0f / (exp<L>(size > 20.0f ? fill<L>(40.0f) : size + size) + 1.0f);
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

struct Running {
  float top, total;
};

// One row of scores becomes weights relative to the row's running maximum; returns the factor for
// what was mixed before.
template <int L>
inline float soften(float* s, int width, int low, int high, float cap, Running& run) {
  if (cap > 0)
    for (int j = 0; j < width; j += L)
      store<L>(s + j, tanh<L>(load<L>(s + j) * (1.0f / cap)) * cap);
  for (int j = 0; j < low; j++) s[j] = kNone;
  for (int j = std::max(low, high); j < width; j++) s[j] = kNone;
  vf<L> best = fill<L>(run.top);
  for (int j = 0; j < width; j += L) best = max<L>(best, load<L>(s + j));
  float top = largest<L>(best);
  if (top == kNone) {
    for (int j = 0; j < width; j++) s[j] = 0;
    return 1.0f;
  }
  vf<L> total = {};
  for (int j = 0; j < width; j += L) {
    vf<L> weight = exp<L>(load<L>(s + j) - top);
    store<L>(s + j, weight);
    total += weight;
  }
  float factor = run.top == kNone ? 0.0f : std::exp(run.top - top);
  run.total = run.total * factor + sum<L>(total);
  run.top = top;
  return factor;
}

inline float* out_row(const AttentionArgs& a, const Item& item, int i) {
  int group_heads = a.heads / a.kv_heads;
  int64_t token = a.cu_seqlens_q[item.row] + item.query + i / group_heads;
  return a.out + token * a.out_stride +
         int64_t(item.kv_head * group_heads + i % group_heads) * a.head_dim;
}

// What a head's keys, or values, are multiplied by after load_as.
inline float unit(const float* scales, int head) { return scales ? scales[head] * kFP8Unit : 1.0f; }

inline void merge_parts(const AttentionArgs& a, const Item& item, const float* parts, int rows) {
  const int d = a.head_dim;
  const float v_unit = unit(a.v_scale, item.kv_head);
  const int64_t part_size = int64_t(rows) * (d + 2);
  for (int i = 0; i < rows; i++) {
    float top = kNone, total = 0;
    for (int part = 0; part < item.num_parts; part++)
      top = std::max(top, parts[part * part_size + rows * d + 2 * i]);
    float* to = out_row(a, item, i);
    std::fill(to, to + d, 0.0f);
    for (int part = 0; part < item.num_parts; part++) {
      const float* from = parts + part * part_size;
      const float* run = from + rows * d + 2 * i;
      if (run[0] == kNone) continue;
      float factor = std::exp(run[0] - top);
      total += run[1] * factor;
      for (int j = 0; j < d; j++) to[j] += from[i * d + j] * factor;
    }
    for (int j = 0; j < d; j++) to[j] = to[j] / total * v_unit;
  }
}

#define PACELINE_BY_ROWS(count, CALL) \
  switch (count) {                    \
    case 1: CALL(1); break;           \
    case 2: CALL(2); break;           \
    case 3: CALL(3); break;           \
    case 4: CALL(4); break;           \
    case 5: CALL(5); break;           \
    default: CALL(6); break;          \
  }

// Rows of scores for one block, and the mix of one tile, six rows at a time.
template <int L, int F>
inline void score_rows(const float* q, int rows, int d, const uint8_t* keys, int block_size,
                       float* scores, int stride) {
  for (int i = 0; i < rows; i += 6) {
#define PACELINE_SCORE(MR) \
  score_block<L, F, MR>(q + i * d, d, keys, block_size, scores + i * stride, stride)
    PACELINE_BY_ROWS(rows - i, PACELINE_SCORE)
#undef PACELINE_SCORE
  }
}

template <int L, int F>
inline void mix_rows(const float* p, int rows, int stride, const Values& values, int d, float* out) {
  for (int i = 0; i < rows; i += 6) {
#define PACELINE_MIX(MR) mix_tile<L, F, MR>(p + i * stride, stride, values, d, out + i * d)
    PACELINE_BY_ROWS(rows - i, PACELINE_MIX)
#undef PACELINE_MIX
  }
}

// More than six rows would widen the same e4m3 values again for every six: they are widened once
// instead, into memory that stays in the first cache.
constexpr int kWidenRows = 6;

template <int L, int F>
inline const uint8_t* widen_block(const uint8_t* from, int n, float* to) {
  for (int j = 0; j < n; j += L) store<L>(to + j, load_as<L, F>(from, j));
  return reinterpret_cast<const uint8_t*>(to);
}

template <int L, int F>
void attend(const AttentionArgs& a, AttentionPlan& plan, const Item& item,
            std::vector<float>& scratch) {
  const int d = a.head_dim, bs = a.block_size, group_heads = a.heads / a.kv_heads;
  const int rows = item.num_queries * group_heads;
  const int tile = std::max(1, kTileTokens / bs) * bs;
  const bool widen = F == kFP8 && rows > kWidenRows;
  scratch.resize(size_t(rows) * (2 * d + tile + 2) + (widen ? size_t(2) * tile * d : 0) + 64);
  float *q = scratch.data(), *out = q + rows * d, *scores = out + rows * d;
  Running* run = reinterpret_cast<Running*>(scores + rows * tile);
  float* wide = scores + rows * (tile + 2);
  const float q_unit = a.scale * unit(a.k_scale, item.kv_head);
  const int first = a.seq_lens[item.row] -
                    (a.cu_seqlens_q[item.row + 1] - a.cu_seqlens_q[item.row]) + item.query;
  for (int i = 0; i < rows; i++) {
    int64_t token = a.cu_seqlens_q[item.row] + item.query + i / group_heads;
    const float* from = a.q + token * a.q_stride +
                        int64_t(item.kv_head * group_heads + i % group_heads) * d;
    scale_to<L>(q + i * d, from, q_unit, d);
    run[i] = {kNone, 0.0f};
  }
  std::fill(out, out + rows * d, 0.0f);
  const int64_t head_bytes = int64_t(bs) * d * format_bytes(F), head = item.kv_head;
  const int32_t* table = a.block_tables + item.row * a.table_stride;
  for (int base = item.begin / bs * bs; base < item.end; base += tile) {
    const int num_blocks = (std::min(tile, item.end - base) + bs - 1) / bs, width = num_blocks * bs;
    Values values{{}, num_blocks, bs, std::max(0, item.begin - base), std::min(item.end - base, width)};
    for (int block = 0; block < num_blocks; block++) {
      int64_t place = (int64_t(table[base / bs + block]) * a.kv_heads + head) * head_bytes;
      const uint8_t* keys = a.k_cache + place;
      values.blocks[block] = a.v_cache + place;
      float* block_scores = scores + block * bs;
      if (widen) {
        float* to = wide + 2 * int64_t(block) * bs * d;
        values.blocks[block] = widen_block<L, F>(values.blocks[block], bs * d, to + bs * d);
        score_rows<L, kF32>(q, rows, d, widen_block<L, F>(keys, bs * d, to), bs, block_scores, tile);
      } else {
        draw_near(values.blocks[block], head_bytes);
        score_rows<L, F>(q, rows, d, keys, bs, block_scores, tile);
      }
    }
    for (int i = 0; i < rows; i++) {
      int position = first + i / group_heads;
      int low = a.window > 0 ? std::max(item.begin, position - a.window + 1) : item.begin;
      int high = std::min(item.end, position + 1);
      float factor = soften<L>(scores + i * tile, width, std::clamp(low - base, 0, width),
                               std::clamp(high - base, 0, width), a.cap, run[i]);
      if (factor != 1.0f) scale_to<L>(out + i * d, out + i * d, factor, d);
    }
    for (int at = base + tile; at < std::min(base + 2 * tile, item.end); at += bs)
      draw_near(a.k_cache + (int64_t(table[at / bs]) * a.kv_heads + head) * head_bytes, head_bytes);
    if (widen)
      mix_rows<L, kF32>(scores, rows, tile, values, d, out);
    else
      mix_rows<L, F>(scores, rows, tile, values, d, out);
  }
  if (item.num_parts == 1) {
    const float v_unit = unit(a.v_scale, item.kv_head);
    for (int i = 0; i < rows; i++)
      scale_to<L>(out_row(a, item, i), out + i * d, v_unit / run[i].total, d);
    return;
  }
  int64_t part_size = int64_t(rows) * (d + 2);
  float* parts = plan.parts.data() + plan.part_at[item.group];
  float* mine = parts + item.part * part_size;
  std::copy(out, out + rows * d, mine);
  std::copy(&run[0].top, &run[0].top + 2 * rows, mine + rows * d);
  if (plan.open_parts[item.group].fetch_sub(1) == 1) merge_parts(a, item, parts, rows);
}

template <int L>
inline void attend_as(const AttentionArgs& a, AttentionPlan& plan, const Item& item,
                      std::vector<float>& scratch) {
  if (a.format == kF32)
    attend<L, kF32>(a, plan, item, scratch);
  else if (a.format == kBF16)
    attend<L, kBF16>(a, plan, item, scratch);
  else if (a.format == kFP8)
    attend<L, kFP8>(a, plan, item, scratch);
  else
    attend<L, kF16>(a, plan, item, scratch);
}

inline void attention(Pool& pool, const AttentionArgs& a, AttentionPlan& plan,
                      std::vector<std::vector<float>>& scratch) {
  plan.open();
  bool wide = a.head_dim % kWidth == 0 && a.block_size % kWidth == 0;
  pool.loop(int(plan.items.size()), [&](int chunk, int worker) {
    if (wide)
      attend_as<kWidth>(a, plan, plan.items[chunk], scratch[worker]);
    else
      attend_as<8>(a, plan, plan.items[chunk], scratch[worker]);
  });
}

}  // namespace paceline
