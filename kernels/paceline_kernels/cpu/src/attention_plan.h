// One call of attention, and how its work is cut into items for the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace paceline {

// Mirrored by the ctypes structure of the same name.
struct AttentionArgs {
  const float* q;
  float* out;
  const uint8_t* k_cache;
  const uint8_t* v_cache;
  const float* k_scale;  // [kv_heads] for kFP8, else null
  const float* v_scale;
  const int32_t* block_tables;
  const int32_t* cu_seqlens_q;
  const int32_t* seq_lens;
  int64_t q_stride, out_stride, table_stride;
  int32_t rows, heads, kv_heads, head_dim, block_size, format;
  int32_t window;  // 0: none
  float scale;
  float cap;  // 0: none
};

struct Item {
  int row, kv_head, query, num_queries;  // queries counted within the row
  int begin, end;                        // positions of the context
  int part, num_parts, group;
};

constexpr int kTileRows = 48;      // query heads x queries of one item
constexpr int kMinPart = 128;      // context tokens of a part, at least

struct AttentionPlan {
  std::vector<Item> items;
  std::vector<float> parts;  // [group][part][rows * (head_dim + 2)]
  std::vector<int64_t> part_at;
  std::unique_ptr<std::atomic<int>[]> open_parts;
  int num_groups = 0;

  void build(const AttentionArgs& a, int num_threads) {
    items.clear();
    part_at.clear();
    int group_heads = a.heads / a.kv_heads, step = std::max(1, kTileRows / group_heads);
    int64_t num_items = 0, size = 0;
    for (int row = 0; row < a.rows; row++) {
      int n = a.cu_seqlens_q[row + 1] - a.cu_seqlens_q[row];
      num_items += int64_t((n + step - 1) / step) * a.kv_heads;
    }
    int wanted = num_threads == 1 ? 1 : int((4 * num_threads + num_items - 1) / std::max<int64_t>(1, num_items));
    for (int row = 0; row < a.rows; row++) {
      int n = a.cu_seqlens_q[row + 1] - a.cu_seqlens_q[row], past = a.seq_lens[row] - n;
      for (int query = 0; query < n; query += step) {
        int count = std::min(step, n - query), end = past + query + count;
        int begin = a.window > 0 ? std::max(0, past + query - a.window + 1) : 0;
        int num_parts = std::max(1, std::min(wanted, (end - begin) / kMinPart));
        int length = (end - begin + num_parts - 1) / num_parts;
        length = (length + a.block_size - 1) / a.block_size * a.block_size;
        num_parts = (end - begin + length - 1) / length;
        for (int head = 0; head < a.kv_heads; head++) {
          int group = int(part_at.size());
          part_at.push_back(size);
          if (num_parts > 1) size += int64_t(num_parts) * count * group_heads * (a.head_dim + 2);
          for (int part = 0; part < num_parts; part++)
            items.push_back({row, head, query, count, begin + part * length,
                             std::min(end, begin + (part + 1) * length), part, num_parts, group});
        }
      }
    }
    if (int64_t(parts.size()) < size) parts.resize(size);
    if (int(part_at.size()) > num_groups) {
      num_groups = int(part_at.size());
      open_parts.reset(new std::atomic<int>[num_groups]);
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& x, const Item& y) {
      return int64_t(x.end - x.begin) * x.num_queries > int64_t(y.end - y.begin) * y.num_queries;
    });
  }

  // Before each run of the plan.
  void open() {
    for (const Item& item : items)
      if (item.num_parts > 1 && item.part == 0)
        open_parts[item.group].store(item.num_parts, std::memory_order_relaxed);
  }
};

}  // namespace paceline
