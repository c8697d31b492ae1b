// C[m, n] = A[m, k] * W[n, k]^T with weights packed once, multiplied in float32 registers.
//
// Packed layout: panels of 2 * kWidth outputs; a panel holds, for each k in turn, its outputs'
// weights. bfloat16: one vector of 32-bit words per k, output j in the low and output kWidth + j in
// the high half of word j, so one load, a shift and a mask give two vectors. Outputs behind n are 0.
#pragma once

#include <algorithm>

#include "pool.h"
#include "vec.h"

namespace paceline {

constexpr int kPanel = 2 * kWidth;
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;  // 24 of 32 registers are sums
#else
constexpr int kMaxRows = 6;  // 12 of 16 registers are sums
#endif

enum Epilogue : int32_t { kStore = 0, kAdd = 1, kSiluMul = 2 };

// Mirrored by the ctypes structure of the same name. `bias` is in packed order, padded, or null.
// A gated weight has gate j and up j in one panel, so that silu(gate) * up needs no second pass.
struct Weight {
  const uint8_t* data;
  const float* bias;
  int32_t n, k, format, gated;
};

inline int64_t panel_bytes(int k, int format) { return int64_t(k) * kPanel * format_bytes(format); }

// Packs the rows named by rows[0, num_panels * kPanel) of source [*, k]; -1 gives zeros.
template <class Bits>
inline void pack_panels(Pool& pool, Bits* out, const Bits* source, int k, const int32_t* rows,
                        int num_panels, bool interleaved) {
  const std::vector<Bits> zeros(k, 0);
  pool.loop(num_panels, [&](int panel, int) {
    const Bits* from[kPanel];
    for (int j = 0; j < kPanel; j++) {
      int place = interleaved ? (j % kWidth) * 2 + j / kWidth : j;
      int64_t row = rows[panel * kPanel + j];
      from[place] = row < 0 ? zeros.data() : source + row * k;
    }
    Bits* to = out + int64_t(panel) * k * kPanel;
    for (int i = 0; i < k; i++, to += kPanel)
      for (int place = 0; place < kPanel; place++) to[place] = from[place][i];
  });
}

inline void pack_weight(Pool& pool, uint8_t* out, const uint8_t* source, int k, const int32_t* rows,
                        int num_panels, int format) {
  if (format == kF32)
    pack_panels(pool, reinterpret_cast<uint32_t*>(out), reinterpret_cast<const uint32_t*>(source),
                k, rows, num_panels, false);
  else
    pack_panels(pool, reinterpret_cast<uint16_t*>(out), reinterpret_cast<const uint16_t*>(source),
                k, rows, num_panels, format == kBF16);
}

template <int F>
inline void load_pair(const uint8_t* b, int k, vf<kWidth>& low, vf<kWidth>& high) {
  if constexpr (F == kBF16) {
    using V = VecN<kWidth>;
    auto words = reinterpret_cast<const typename V::u32u*>(b)[k];
    typename V::u32 left = words << 16, right = words & 0xffff0000u;
    low = reinterpret_cast<vf<kWidth>>(left);
    high = reinterpret_cast<vf<kWidth>>(right);
  } else {
    low = load_as<kWidth, F>(b, int64_t(k) * kPanel);
    high = load_as<kWidth, F>(b, int64_t(k) * kPanel + kWidth);
  }
}

// sums[i][0..1] = a row i times one panel. Few rows take several sums per row (KU of them) so that
// the latency of one multiply-add does not bound the loop. While it runs, `ahead` (the next panel)
// is drawn towards the cache, `ahead_step` bytes per four k.
template <int MR, int F>
inline void multiply(const float* a, int64_t lda, const uint8_t* b, int k_size,
                     const uint8_t* ahead, int ahead_step, vf<kWidth> (&sums)[MR][2]) {
  constexpr int KU = MR == 1 ? 4 : MR <= 3 ? 2 : 1;
  vf<kWidth> c[KU][MR][2] = {};
  int k = 0;
  for (; k + 4 <= k_size; k += 4) {
    __builtin_prefetch(ahead, 0, 2);
    __builtin_prefetch(ahead + 64, 0, 2);
    ahead += ahead_step;
#pragma GCC unroll 1
    for (int v = 0; v < 4; v += KU) {
#pragma GCC unroll 4
      for (int u = 0; u < KU; u++) {
        vf<kWidth> low, high;
        load_pair<F>(b, k + v + u, low, high);
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
          float x = a[i * lda + k + v + u];
          c[u][i][0] += low * x;
          c[u][i][1] += high * x;
        }
      }
    }
  }
  for (; k < k_size; k++) {
    vf<kWidth> low, high;
    load_pair<F>(b, k, low, high);
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
      float x = a[i * lda + k];
      c[0][i][0] += low * x;
      c[0][i][1] += high * x;
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; i++) {
    sums[i][0] = c[0][i][0];
    sums[i][1] = c[0][i][1];
    for (int u = 1; u < KU; u++) sums[i][0] += c[u][i][0], sums[i][1] += c[u][i][1];
  }
}

struct Product {
  Weight weight;
  const float* a;
  int64_t lda;
  float* c;
  int64_t ldc;
  int num_rows;
  int epilogue;
};

inline void put(float* to, vf<kWidth> v, int count) {
  if (count >= kWidth) {
    store<kWidth>(to, v);
  } else {
    for (int j = 0; j < count; j++) to[j] = v[j];
  }
}

inline void add(float* to, vf<kWidth> v, int count) {
  if (count >= kWidth) {
    store<kWidth>(to, load<kWidth>(to) + v);
  } else {
    for (int j = 0; j < count; j++) to[j] += v[j];
  }
}

// What is done with finished sums, count rows of one panel. Not inlined: it would be compiled
// anew for every tile.
__attribute__((noinline)) inline void finish(const Product& p, int row, int count, int panel,
                                             vf<kWidth> (*sums)[2]) {
  const Weight& w = p.weight;
  for (int i = 0; i < count; i++) {
    vf<kWidth> low = sums[i][0], high = sums[i][1];
    if (w.bias) {
      low += load<kWidth>(w.bias + panel * kPanel);
      high += load<kWidth>(w.bias + panel * kPanel + kWidth);
    }
    float* out = p.c + (row + i) * p.ldc;
    if (p.epilogue == kSiluMul) {
      int at = panel * kWidth;
      put(out + at, silu_mul<kWidth>(low, high), w.n / 2 - at);
    } else {
      int at = panel * kPanel, left = w.n - at;
      if (p.epilogue == kAdd) {
        add(out + at, low, left);
        if (left > kWidth) add(out + at + kWidth, high, left - kWidth);
      } else {
        put(out + at, low, left);
        if (left > kWidth) put(out + at + kWidth, high, left - kWidth);
      }
    }
  }
}

template <int MR, int F>
void tile(const Product& p, int row, int panel, const uint8_t* ahead, int ahead_step) {
  const Weight& w = p.weight;
  vf<kWidth> sums[MR][2];
  multiply<MR, F>(p.a + row * p.lda, p.lda, w.data + panel * panel_bytes(w.k, F), w.k, ahead,
                  ahead_step, sums);
  finish(p, row, MR, panel, sums);
}

template <int F>
void tile_rows(const Product& p, int count, int row, int panel, const uint8_t* ahead, int step) {
  switch (count) {
#define PACELINE_ROWS(MR) \
  case MR:                \
    return tile<MR, F>(p, row, panel, ahead, step);
    PACELINE_ROWS(1)
    PACELINE_ROWS(2)
    PACELINE_ROWS(3)
    PACELINE_ROWS(4)
    PACELINE_ROWS(5)
    PACELINE_ROWS(6)
#if defined(__AVX512F__)
    PACELINE_ROWS(7)
    PACELINE_ROWS(8)
    PACELINE_ROWS(9)
    PACELINE_ROWS(10)
    PACELINE_ROWS(11)
    PACELINE_ROWS(12)
#endif
#undef PACELINE_ROWS
  }
}

// Rows [row, row + count) times panels [panel, end).
inline void multiply_block(const Product& p, int row, int count, int panel, int end) {
  const Weight& w = p.weight;
  int64_t size = panel_bytes(w.k, w.format);
  int num_tiles = (count + kMaxRows - 1) / kMaxRows;
  int share = int(size / num_tiles), step = std::max(1, int(int64_t(share) * 4 / w.k));
  for (; panel < end; panel++) {
    const uint8_t* next = w.data + std::min<int64_t>(panel + 1, end - 1) * size;
    for (int t = 0, at = row; t < num_tiles; t++) {
      int rows = count / num_tiles + (t < count % num_tiles);
      const uint8_t* ahead = next + int64_t(t) * share;
      if (w.format == kBF16)
        tile_rows<kBF16>(p, rows, at, panel, ahead, step);
      else if (w.format == kF32)
        tile_rows<kF32>(p, rows, at, panel, ahead, step);
      else
        tile_rows<kF16>(p, rows, at, panel, ahead, step);
      at += rows;
    }
  }
}

// The whole product. Row blocks are sized for the L2 cache; consecutive chunks share a row block.
inline void product(Pool& pool, const Product& p) {
  if (p.num_rows == 0) return;
  const Weight& w = p.weight;
  int num_panels = (w.n + kPanel - 1) / kPanel;
  constexpr int64_t kBlockBytes = 192 * 1024;
  int block = int(std::max<int64_t>(1, kBlockBytes / (int64_t(w.k) * 4 * kMaxRows))) * kMaxRows;
  int num_blocks = (p.num_rows + block - 1) / block;
  block = (p.num_rows + num_blocks - 1) / num_blocks;
  int wanted = std::max(1, 4 * pool.size() / num_blocks + 1);
  if (pool.size() == 1) wanted = 1;
  int panels = std::max(1, (num_panels + wanted - 1) / wanted);
  panels = std::min(panels, 64);
  int columns = (num_panels + panels - 1) / panels;
  pool.loop(num_blocks * columns, [&](int chunk, int) {
    int row = chunk / columns * block, panel = chunk % columns * panels;
    multiply_block(p, row, std::min(block, p.num_rows - row), panel,
                   std::min(panel + panels, num_panels));
  });
}

}  // namespace paceline
