// Sampling over a vocabulary: argmax of scores / temperature + Gumbel noise, and the best scores.
//
// Nothing here decides by a logarithm or an exponential that another implementation rounds in
// another way. `draw_row` names every token that may have won within a proven bound of the error,
// nearly always one; `top_row` selects by comparisons alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vec.h"

namespace paceline {

// sampling_reference.py: the hash of (key, token id), and the uniform number made of it.
constexpr uint32_t kTokenStep = 0x9E3779B9u, kTokenMix1 = 0x85EBCA6Bu, kTokenMix2 = 0xC2B2AE35u;
constexpr float kNever = -std::numeric_limits<float>::infinity();

template <class U>
inline U token_hash(U state, uint32_t high) {
  state ^= state >> 16;
  state *= kTokenMix1;
  state ^= state >> 13;
  state = (state + high) * kTokenMix2;
  return (state ^ (state >> 16)) & 0x7fffffffu;
}

struct Drawn {
  double value;
  int32_t id;
};

constexpr int kMaxDrawn = 32;

// Error of the reference's float32 noise, sum included, with room to spare: its two logarithms are
// good to a unit in the last place, noise is below 23 in size.
inline double draw_error(double best) { return (std::fabs(best) + 32.0) * 0x1p-20; }

// Tokens that may have the largest s / temperature + noise, ascending; returns how many, or -1 when
// they are too many to list.
//
// Most tokens are passed over by a bound of the noise that needs no logarithm: noise is at most
// -ln(u), and log2(u) is at least exponent + mantissa of u.
inline int draw_row(const float* s, int vocab, float temperature, float floor, uint64_t key,
                    int32_t* ids) {
  using u32 = typename VecN<kWidth>::u32;
  using i32 = typename VecN<kWidth>::i32;
  constexpr int kGroup = 8 * kWidth;
  constexpr float kLn2 = 0.69314718f, kSlack = 127 * kLn2 + 1e-3f, kBit = kLn2 * 0x1p-23f;
  const uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
  const float inverse = 1.0f / temperature;
  Drawn found[kMaxDrawn];
  int count = 0;
  bool overflow = false;
  double best = -std::numeric_limits<double>::infinity();
  float bar = kNever;
  auto look = [&](int id) {
    uint32_t hash = token_hash(uint32_t(id) * kTokenStep + low, high);
    float u = float(int32_t(hash)) * 0x1p-31f + 0x1p-32f;
    int32_t bits;
    std::memcpy(&bits, &u, 4);
    if (!(s[id] * inverse + (kSlack - float(bits) * kBit) > bar)) return;
    float scaled = s[id] / temperature;
    if (!(scaled >= floor) || scaled == kNever) return;
    double uniform = std::min(double(u), 1.0 - 0x1p-24);
    double value = double(scaled) - std::log(-std::log1p(-uniform));
    if (value > best) {
      best = value;
      bar = float(best - (std::fabs(best) + 128.0) * 0x1p-18);
    }
    if (value < best - 2 * draw_error(best)) return;
    if (count == kMaxDrawn) {
      auto stays = [&](const Drawn& d) { return d.value >= best - 2 * draw_error(best); };
      count = int(std::stable_partition(found, found + count, stays) - found);
      if (count == kMaxDrawn) {
        overflow = true;
        return;
      }
    }
    found[count++] = {value, id};
  };
  u32 step;
  for (int j = 0; j < kWidth; j++) step[j] = uint32_t(j) * kTokenStep + low;
  int at = 0;
  for (; at + kGroup <= vocab; at += kGroup) {
    i32 over = {};
    for (int j = 0; j < kGroup; j += kWidth, step += uint32_t(kWidth) * kTokenStep) {
      i32 hash = reinterpret_cast<i32>(token_hash(step, high));
      vf<kWidth> u = __builtin_convertvector(hash, vf<kWidth>) * 0x1p-31f + 0x1p-32f;
      vf<kWidth> bits = __builtin_convertvector(reinterpret_cast<i32>(u), vf<kWidth>);
      over |= load<kWidth>(s + at + j) * inverse + (kSlack - bits * kBit) > bar;
    }
    int32_t any = 0;
    for (int j = 0; j < kWidth; j++) any |= over[j];
    if (any)
      for (int j = 0; j < kGroup; j++) look(at + j);
  }
  for (; at < vocab; at++) look(at);
  if (overflow) return -1;
  int kept = 0;
  for (int i = 0; i < count; i++)
    if (found[i].value >= best - 2 * draw_error(best)) ids[kept++] = found[i].id;
  return kept;
}

struct Best {
  float value;
  int32_t id;
};

struct TopScratch {
  std::vector<float> scaled;
  std::vector<int32_t> bins;
  std::vector<Best> found;
};

constexpr int kSpan = 64;
constexpr int kBins = 2048;
constexpr float kBinsPerUnit = 64;

// The `count` best of s / temperature (below `floor`: never), best first, with all ties of the last;
// the list ends at -inf. Returns its length, or -1 when it is longer than `capacity`. `norm`, if
// given, gets logsumexp; `last` the count-th best or -inf.
inline int top_row(TopScratch& scratch, const float* s, int vocab, float temperature, float floor,
                   int count, int capacity, float* values, int64_t* ids, float* last, float* norm) {
  scratch.scaled.resize(vocab);
  scratch.bins.resize(vocab);
  float* scaled = scratch.scaled.data();
  float top = kNever;
  for (int at = 0; at < vocab; at += kSpan) {
    int end = std::min(vocab, at + kSpan), i = at;
    vf<kWidth> peaks = fill<kWidth>(kNever);
    for (; i + kWidth <= end; i += kWidth) {
      vf<kWidth> v = load<kWidth>(s + i) / temperature;
      v = v < floor ? fill<kWidth>(kNever) : v;
      store<kWidth>(scaled + i, v);
      peaks = max<kWidth>(peaks, v);
    }
    float peak = largest<kWidth>(peaks);
    for (; i < end; i++) {
      float v = s[i] / temperature;
      scaled[i] = v < floor ? kNever : v;
      peak = std::max(peak, scaled[i]);
    }
    top = std::max(top, peak);
  }
  if (norm) {
    double total = 0;
    for (int at = 0; at < vocab; at += kSpan) {
      int end = std::min(vocab, at + kSpan), i = at;
      vf<kWidth> sums = {};
      for (; i + kWidth <= end; i += kWidth)
        sums += paceline::exp<kWidth>(load<kWidth>(scaled + i) - top);
      total += double(sum<kWidth>(sums));
      for (; i < end; i++) total += std::exp(double(scaled[i]) - double(top));
    }
    *norm = float(double(top) + std::log(total));
  }
  // How far below the best, in steps: a histogram tells the last step that has to be looked at.
  int32_t* bins = scratch.bins.data();
  std::vector<int32_t> sizes(kBins, 0);
  auto bin_of = [top](float v) { return std::min((top - v) * kBinsPerUnit, float(kBins - 1)); };
  for (int i = 0; i < vocab; i++) bins[i] = int32_t(bin_of(scaled[i]));
  for (int i = 0; i < vocab; i++) sizes[bins[i]]++;
  int last_bin = 0;
  for (int64_t seen = sizes[0]; seen < count && last_bin < kBins - 1;) seen += sizes[++last_bin];
  std::vector<Best>& found = scratch.found;
  found.clear();
  for (int i = 0; i < vocab; i++)
    if (bins[i] <= last_bin && scaled[i] > kNever) found.push_back({scaled[i], i});
  auto better = [](const Best& a, const Best& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  };
  *last = kNever;
  size_t length = found.size();
  if (int64_t(length) >= count) {
    std::nth_element(found.begin(), found.begin() + (count - 1), found.end(), better);
    *last = found[count - 1].value;
    float least = *last;
    auto ties = [least](const Best& b) { return b.value >= least; };
    length = size_t(std::partition(found.begin() + count, found.end(), ties) - found.begin());
  }
  if (int64_t(length) > capacity) return -1;
  std::sort(found.begin(), found.begin() + length, better);
  for (size_t i = 0; i < length; i++) values[i] = found[i].value, ids[i] = found[i].id;
  return int(length);
}

}  // namespace paceline
