// What is done per token between the products: norm, rotary, KV write, embedding.
#pragma once

#include "vec.h"

namespace paceline {

// out = (x + residual) scaled to unit mean square, times weight; the sum goes to `total` if given.
inline void rms_norm_row(const float* x, const float* residual, const float* weight, float* out,
                         float* total, int n, float eps) {
  vf<kWidth> squares = {};
  float rest = 0;
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    vf<kWidth> v = load<kWidth>(x + i);
    if (residual) v += load<kWidth>(residual + i);
    if (total) store<kWidth>(total + i, v);
    squares += v * v;
  }
  for (; i < n; i++) {
    float v = x[i] + (residual ? residual[i] : 0.0f);
    if (total) total[i] = v;
    rest += v * v;
  }
  float scale = 1.0f / std::sqrt((sum<kWidth>(squares) + rest) / float(n) + eps);
  const float* from = total ? total : x;
  for (i = 0; i + kWidth <= n; i += kWidth)
    store<kWidth>(out + i, load<kWidth>(from + i) * scale * load<kWidth>(weight + i));
  for (; i < n; i++) out[i] = from[i] * scale * weight[i];
}

inline void rotate_head(float* head, const float* cos_sin, int rotary_dim) {
  int half = rotary_dim / 2, i = 0;
  const float *cosine = cos_sin, *sine = cos_sin + half;
  for (; i + 8 <= half; i += 8) {
    vf<8> a = load<8>(head + i), b = load<8>(head + half + i);
    vf<8> c = load<8>(cosine + i), s = load<8>(sine + i);
    store<8>(head + i, a * c - b * s);
    store<8>(head + half + i, b * c + a * s);
  }
  for (; i < half; i++) {
    float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

// Mirrored by the ctypes structure of the same name.
struct KvCache {
  uint8_t* k;
  uint8_t* v;
  const float* k_scale;  // [kv_heads] for kFP8, else null
  const float* v_scale;
  int32_t kv_heads, head_dim, block_size, format;
};

// One token's keys and values of one head, divided by their scales, as e4m3.
inline void write_head_fp8(const KvCache& cache, const float* k, const float* v, int head,
                           int64_t base, int64_t offset) {
  const int d = cache.head_dim, bs = cache.block_size;
  const vf<8> k_scale = fill<8>(cache.k_scale[head]), v_scale = fill<8>(cache.v_scale[head]);
  uint8_t *to_k = cache.k + base + offset, *to_v = cache.v + base + offset * d;
  for (int i = 0; i < d; i += 8) {
    uint8_t keys[8];
    narrow_fp8(load<8>(k + i) / k_scale, keys);
    for (int j = 0; j < 8; j++) to_k[int64_t(i + j) * bs] = keys[j];
    narrow_fp8(load<8>(v + i) / v_scale, to_v + i);
  }
}

// One token's keys and values into its slot; -1: nowhere.
inline void write_token(const KvCache& cache, const float* k, const float* v, int64_t slot) {
  if (slot < 0) return;
  const int d = cache.head_dim, bs = cache.block_size, format = cache.format;
  const int64_t block = slot / bs, offset = slot % bs;
  for (int head = 0; head < cache.kv_heads; head++) {
    int64_t base = (block * cache.kv_heads + head) * d * bs;
    const float *from_k = k + head * d, *from_v = v + head * d;
    if (format == kFP8) {
      write_head_fp8(cache, from_k, from_v, head, base, offset);
    } else if (format == kF32) {
      float* to = reinterpret_cast<float*>(cache.k) + base + offset;
      for (int i = 0; i < d; i++) to[int64_t(i) * bs] = from_k[i];
      std::memcpy(reinterpret_cast<float*>(cache.v) + base + offset * d, from_v, d * sizeof(float));
    } else {
      for (int i = 0; i < d; i++) store_as(cache.k, base + int64_t(i) * bs + offset, from_k[i], format);
      for (int i = 0; i < d; i++) store_as(cache.v, base + offset * d + i, from_v[i], format);
    }
  }
}

inline void silu_mul_row(const float* x, float* out, int n) {
  int i = 0;
  for (; i + 8 <= n; i += 8)
    store<8>(out + i, silu_mul<8>(load<8>(x + i), load<8>(x + n + i)));
  for (; i < n; i++) out[i] = x[i] / (1.0f + std::exp(-x[i])) * x[n + i];
}

inline void embed_row(const uint8_t* table, int format, int64_t id, int hidden, float* out) {
  for (int i = 0; i < hidden; i++) out[i] = load_one(table, id * hidden + i, format);
}

}  // namespace paceline
