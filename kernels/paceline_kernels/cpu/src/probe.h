// What this machine can do: the rooflines that measured times are compared with.
#pragma once

#include "pool.h"
#include "vec.h"

namespace paceline {

// Multiply-adds on registers alone; returns a value that depends on all of them.
inline float probe_multiply_adds(Pool& pool, int64_t rounds) {
  std::vector<float> results(pool.size());
  pool.loop(pool.size(), [&](int chunk, int) {
    vf<kWidth> sums[12], x = fill<kWidth>(1e-9f * float(chunk + 1)), y = fill<kWidth>(0.5f);
    // Different sums, or the compiler computes one of them for all.
    for (int j = 0; j < 12; j++) sums[j] = fill<kWidth>(float(j));
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; j++) sums[j] = sums[j] * y + x;
    }
    for (int j = 1; j < 12; j++) sums[0] += sums[j];
    results[chunk] = sum<kWidth>(sums[0]);
  });
  float total = 0;
  for (float result : results) total += result;
  return total;
}

// Reads size bytes (a multiple of 64 * chunks) once.
inline float probe_read(Pool& pool, const float* data, int64_t size) {
  constexpr int kChunks = 64;
  float results[kChunks];
  int64_t count = size / 4 / kChunks;
  pool.loop(kChunks, [&](int chunk, int) {
    const float* from = data + chunk * count;
    vf<kWidth> sums[4] = {};
    for (int64_t i = 0; i + 4 * kWidth <= count; i += 4 * kWidth) {
      __builtin_prefetch(from + i + 1024, 0, 2);
      for (int j = 0; j < 4; j++) sums[j] += load<kWidth>(from + i + j * kWidth);
    }
    results[chunk] = sum<kWidth>(sums[0] + sums[1] + sums[2] + sums[3]);
  });
  float total = 0;
  for (float result : results) total += result;
  return total;
}

}  // namespace paceline
