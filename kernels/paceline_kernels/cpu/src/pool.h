// A small pool of threads for parallel loops of a few microseconds.
//
// Why not OpenMP: its barrier waits for every thread to arrive, so a thread that lost its core to
// another process holds all others for a scheduler quantum. Here a loop ends when its chunks are
// done: chunks are claimed one by one, and a thread that is not there claims nothing. Waiting spins
// for a bounded time, then sleeps in the kernel, so that the core goes to whoever has work.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace paceline {

using ChunkFn = void (*)(void* context, int chunk, int worker);

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

class Pool {
 public:
  Pool(int num_threads, int spin_us) : num_threads_(num_threads), spin_us_(spin_us) {
    for (int worker = 1; worker < num_threads; worker++)
      threads_.emplace_back([this, worker] { work(worker); });
  }

  ~Pool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    futex_wake(epoch_, INT_MAX);
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return num_threads_; }

  // Held by whoever runs loops; calls from two Python threads take turns.
  std::mutex& owner() { return owner_; }

  // fn(context, chunk, worker) for every chunk in [0, num_chunks); returns when all are done.
  void run(int num_chunks, ChunkFn fn, void* context) {
    if (num_chunks <= 1 || num_threads_ == 1) {
      for (int chunk = 0; chunk < num_chunks; chunk++) fn(context, chunk, 0);
      return;
    }
    uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    Job& job = jobs_[epoch % kJobs];
    job.fn.store(fn, std::memory_order_relaxed);
    job.context.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(pack(epoch, num_chunks, 0));
    epoch_.store(epoch);
    if (sleepers_.load() > 0) futex_wake(epoch_, num_threads_ - 1);
    claim_all(epoch, 0);
    wait_done(uint32_t(num_chunks));
  }

  template <class Body>
  void loop(int num_chunks, Body&& body) {
    run(
        num_chunks,
        [](void* context, int chunk, int worker) {
          (*static_cast<Body*>(context))(chunk, worker);
        },
        &body);
  }

 private:
  struct Job {
    std::atomic<ChunkFn> fn{nullptr};
    std::atomic<void*> context{nullptr};
  };
  static constexpr int kJobs = 8;

  // The ticket is (epoch: 24 bits, number of chunks: 20, next chunk: 20). A claim is one
  // compare-and-swap on the whole, so a late thread can never claim a chunk of a loop that ended,
  // nor mix the function of one loop with the chunk of another.
  static uint64_t pack(uint32_t epoch, int num_chunks, int next) {
    return (uint64_t(epoch & 0xffffff) << 40) | (uint64_t(num_chunks) << 20) | uint64_t(next);
  }

  void claim_all(uint32_t epoch, int worker) {
    for (;;) {
      uint64_t ticket = ticket_.load(std::memory_order_acquire);
      if ((ticket >> 40) != (epoch & 0xffffff)) return;
      int num_chunks = int((ticket >> 20) & 0xfffff), next = int(ticket & 0xfffff);
      if (next >= num_chunks) return;
      Job& job = jobs_[epoch % kJobs];
      ChunkFn fn = job.fn.load(std::memory_order_relaxed);
      void* context = job.context.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      fn(context, next, worker);
      uint32_t finished = done_.fetch_add(1) + 1;
      if (worker != 0 && finished == uint32_t(num_chunks) && waiting_.load()) futex_wake(done_, 1);
    }
  }

  template <class Ready>
  bool spin(Ready&& ready) {
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    do {
      for (int i = 0; i < 16; i++) {
        if (ready()) return true;
        cpu_relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    return ready();
  }

  void wait_done(uint32_t num_chunks) {
    if (spin([&] { return done_.load(std::memory_order_acquire) == num_chunks; })) return;
    waiting_.store(true);
    for (;;) {
      uint32_t done = done_.load();
      if (done == num_chunks) break;
      futex_wait(done_, done);
    }
    waiting_.store(false);
  }

  void work(int worker) {
    uint32_t seen = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      if (!spin([&] { return epoch_.load(std::memory_order_acquire) != seen; })) {
        sleepers_.fetch_add(1);
        while (epoch_.load() == seen) futex_wait(epoch_, seen);
        sleepers_.fetch_sub(1);
      }
      seen = epoch_.load(std::memory_order_acquire);
      claim_all(seen, worker);
    }
  }

  const int num_threads_, spin_us_;
  std::mutex owner_;
  Job jobs_[kJobs];
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> waiting_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace paceline
