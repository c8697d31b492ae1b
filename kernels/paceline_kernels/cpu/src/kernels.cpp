// The C interface of the CPU kernels, loaded with ctypes. Pointers and sizes are checked by the
// Python side; nothing here throws.
#include <sys/mman.h>

#include "decoder.h"
#include "probe.h"
#include "sample.h"

using namespace paceline;

namespace {

// A pool and the memory that its loops reuse from call to call.
struct Context {
  Context(int num_threads, int spin_us) : pool(num_threads, spin_us) {
    scratch.workers.resize(num_threads);
    top.resize(num_threads);
  }
  Pool pool;
  Scratch scratch;
  std::vector<TopScratch> top;
};

}  // namespace

extern "C" {

int32_t paceline_width() { return kWidth; }

// Sizes of the mirrored structures, so that the Python side can refuse a mismatch.
int64_t paceline_struct_size(int32_t which) {
  const int64_t sizes[] = {sizeof(Weight),  sizeof(KvCache), sizeof(AttentionArgs),
                           sizeof(Layer),   sizeof(Decoder), sizeof(Batch)};
  return sizes[which];
}

void* paceline_context(int32_t num_threads, int32_t spin_us) {
  return new Context(num_threads, spin_us);
}

void paceline_context_free(void* context) { delete static_cast<Context*>(context); }

// Large pages for weights that are streamed from memory: fewer address misses. A hint only.
void paceline_advise_huge(void* data, int64_t size) {
#if defined(MADV_HUGEPAGE)
  uintptr_t page = 4096, from = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  uintptr_t to = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

void paceline_pack(void* context, uint8_t* out, const uint8_t* source, int32_t k,
                   const int32_t* rows, int32_t num_panels, int32_t format) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  pack_weight(c->pool, out, source, k, rows, num_panels, format);
}

void paceline_linear(void* context, const Weight* weight, const float* x, float* out,
                     int64_t out_stride, int32_t rows, int32_t epilogue) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  product(c->pool, {*weight, x, weight->k, out, out_stride, rows, epilogue});
}

void paceline_rms_norm(void* context, const float* x, const float* residual, const float* weight,
                       float* out, float* total, int64_t rows, int32_t n, float eps) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  each_token(c->pool, int(rows), [&](int t) {
    int64_t at = int64_t(t) * n;
    rms_norm_row(x + at, residual ? residual + at : nullptr, weight, out + at,
                 total ? total + at : nullptr, n, eps);
  });
}

void paceline_rotary(void* context, float* q, float* k, int64_t q_stride, int64_t k_stride,
                     const int64_t* positions, const float* cos_sin, int32_t tokens, int32_t heads,
                     int32_t kv_heads, int32_t head_dim, int32_t rotary_dim) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  each_token(c->pool, tokens, [&](int t) {
    const float* turn = cos_sin + positions[t] * rotary_dim;
    for (int head = 0; head < heads; head++)
      rotate_head(q + t * q_stride + int64_t(head) * head_dim, turn, rotary_dim);
    for (int head = 0; head < kv_heads; head++)
      rotate_head(k + t * k_stride + int64_t(head) * head_dim, turn, rotary_dim);
  });
}

void paceline_write_kv(void* context, const KvCache* cache, const float* k, const float* v,
                       int64_t k_stride, int64_t v_stride, const int64_t* slots, int32_t tokens) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  each_token(c->pool, tokens,
             [&](int t) { write_token(*cache, k + t * k_stride, v + t * v_stride, slots[t]); });
}

void paceline_attention(void* context, const AttentionArgs* args) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  c->scratch.full.build(*args, c->pool.size());
  attention(c->pool, *args, c->scratch.full, c->scratch.workers);
}

void paceline_silu_mul(void* context, const float* x, float* out, int64_t rows, int32_t n) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  each_token(c->pool, int(rows),
             [&](int t) { silu_mul_row(x + int64_t(t) * 2 * n, out + int64_t(t) * n, n); });
}

void paceline_embedding(void* context, const uint8_t* table, int32_t format, const int64_t* ids,
                        float* out, int32_t tokens, int32_t hidden) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  each_token(c->pool, tokens, [&](int t) {
    embed_row(table, format, ids[t], hidden, out + int64_t(t) * hidden);
  });
}

int64_t paceline_workspace_bytes(const Decoder* decoder, int64_t tokens) {
  return workspace_floats(*decoder, tokens) * int64_t(sizeof(float));
}

void paceline_forward(void* context, const Decoder* decoder, const Batch* batch) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  forward(c->pool, c->scratch, *decoder, *batch);
}

// ids: [n, kMaxDrawn]; counts: [n], -1: too many to list.
void paceline_draw(void* context, const float* scores, int64_t stride, int32_t vocab,
                   const int64_t* rows, const float* temperature, const float* floor,
                   const uint64_t* keys, int32_t num_rows, int32_t* ids, int32_t* counts) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  c->pool.loop(num_rows, [&](int r, int) {
    counts[r] = draw_row(scores + rows[r] * stride, vocab, temperature[r], floor[r], keys[r],
                         ids + int64_t(r) * kMaxDrawn);
  });
}

// values, ids: [n, capacity]; lengths, last, norms: [n]; norms may be null.
void paceline_top(void* context, const float* scores, int64_t stride, int32_t vocab,
                  const int64_t* rows, const float* temperature, const float* floor,
                  int32_t num_rows, int32_t count, int32_t capacity, float* values, int64_t* ids,
                  int32_t* lengths, float* last, float* norms) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  c->pool.loop(num_rows, [&](int r, int worker) {
    int64_t at = int64_t(r) * capacity;
    lengths[r] = top_row(c->top[worker], scores + rows[r] * stride, vocab, temperature[r], floor[r],
                         count, capacity, values + at, ids + at, last + r,
                         norms ? norms + r : nullptr);
  });
}

float paceline_probe_multiply_adds(void* context, int64_t rounds) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  return probe_multiply_adds(c->pool, rounds);
}

float paceline_probe_read(void* context, const float* data, int64_t size) {
  auto* c = static_cast<Context*>(context);
  std::lock_guard<std::mutex> hold(c->pool.owner());
  return probe_read(c->pool, data, size);
}

}  // extern "C"
