// Owns the threads. They run one function side by side and meet at barriers: a short spin, then a futex.
//
// A thread that waits longer than the spin sleeps: a busy neighbour costs its share of a core and no more.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include <immintrin.h>

namespace midstream {

// A number that threads wait on to change.
class Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  void wait_past(uint32_t seen, int num_spins) {
    for (int i = 0; i < num_spins; i++) {
      if (value() != seen) return;
      _mm_pause();
    }
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    while (value() == seen) {
      syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int> num_sleeping_{0};
};

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int i = 1; i < num_threads; i++) {
      workers_.emplace_back([this, i] { work(i); });
    }
  }

  ~Pool() {
    task_ = nullptr;
    start_.advance();
    for (std::thread &worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }

  // Run task(thread) on every thread, this one included; returns when all have ended.
  void run(const std::function<void(int)> &task) {
    task_ = &task;
    start_.advance();
    task(0);
    barrier();
  }

  // Wait until every thread has come here.
  void barrier() {
    if (num_threads_ == 1) return;
    const uint32_t seen = meeting_.value();
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      num_arrived_.store(0, std::memory_order_relaxed);
      meeting_.advance();
    } else {
      meeting_.wait_past(seen, kSpins);
    }
  }

 private:
  static constexpr int kSpins = 4000;  // some 50 to 100 microseconds

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      start_.wait_past(seen, kSpins);
      seen++;
      if (task_ == nullptr) return;
      (*task_)(thread);
      barrier();
    }
  }

  const int num_threads_;
  const std::function<void(int)> *task_ = nullptr;
  Signal start_, meeting_;
  std::atomic<int> num_arrived_{0};
  std::vector<std::thread> workers_;
};

}  // namespace midstream
