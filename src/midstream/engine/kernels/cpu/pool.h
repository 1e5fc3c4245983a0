// Owns the threads. They share the pieces of each phase; who waits spins for a moment, then sleeps on a futex.
//
// A busy neighbour costs its share of a core and no more.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

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
      spin_loop_hint();
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

// Threads that walk through a job's phases side by side. A phase is over when its pieces are done, not when every
// thread has come by: one that the system has taken off its core holds up nobody, unless it was in the middle of a piece.
class Pool {
 public:
  // One thread's way through the phases of one job.
  struct Walk {
    uint32_t job;
    int thread;
    int phase;
  };

  Pool(int num_threads, int num_phases) : num_threads_(num_threads), phases_(num_phases) {
    for (int i = 1; i < num_threads; i++) {
      workers_.emplace_back([this, i] { work(i); });
    }
  }

  ~Pool() {
    is_over_ = true;
    start_.advance();
    for (std::thread &worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }

  // Run job(walk) on this thread, and on the others as far as they come. What the job reads outside of its pieces
  // must be copied into `job`: a thread may still walk through this job, finding nothing to do, when the next one runs.
  void run(std::function<void(Walk &)> job) {
    const uint32_t number = job_number_.load(std::memory_order_relaxed) + 1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = std::make_shared<std::function<void(Walk &)>>(std::move(job));
      for (Phase &phase : phases_) {
        phase.num_done.store(0, std::memory_order_relaxed);
        phase.next.store(static_cast<uint64_t>(number) << 32, std::memory_order_release);
      }
      job_number_.store(number, std::memory_order_release);
    }
    if (num_threads_ > 1) start_.advance();
    Walk walk{number, 0, 0};
    (*job_)(walk);
  }

  // Run body(begin, end) over [0, count) in pieces, whoever is free takes the next; return when all are done.
  template <typename Body>
  void share(Walk &walk, int count, int piece, const Body &body) {
    Phase &phase = phases_[walk.phase++];
    int num_done = 0;
    for (int begin; take(phase, walk.job, piece, count, &begin);) {
      const int end = begin + piece < count ? begin + piece : count;
      body(begin, end);
      num_done += end - begin;
    }
    if (num_done > 0 && phase.num_done.fetch_add(num_done, std::memory_order_acq_rel) + num_done == count) {
      progress_.advance();
    }
    for (;;) {
      const uint32_t seen = progress_.value();
      if (phase.num_done.load(std::memory_order_acquire) >= count) return;
      if (job_number_.load(std::memory_order_acquire) != walk.job) return;
      progress_.wait_past(seen, kSpins);
    }
  }

 private:
  struct Phase {
    std::atomic<uint64_t> next{0};  // job number << 32 | first index that nobody has taken
    std::atomic<int> num_done{0};
  };

  static constexpr int kSpins = 4000;  // some tens of microseconds: longer than a phase, and no longer than a thread's wake-up

  static bool take(Phase &phase, uint32_t job, int piece, int count, int *begin) {
    uint64_t next = phase.next.load(std::memory_order_acquire);
    do {
      if (next >> 32 != job || static_cast<int>(next & 0xffffffff) >= count) return false;
    } while (!phase.next.compare_exchange_weak(next, next + piece, std::memory_order_acq_rel));
    *begin = static_cast<int>(next & 0xffffffff);
    return true;
  }

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      start_.wait_past(seen, kSpins);
      seen = start_.value();
      if (is_over_) return;
      std::shared_ptr<std::function<void(Walk &)>> job;
      Walk walk{0, thread, 0};
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        job = job_;
        walk.job = job_number_.load(std::memory_order_relaxed);
      }
      (*job)(walk);
    }
  }

  const int num_threads_;
  std::vector<Phase> phases_;
  std::mutex mutex_;
  std::shared_ptr<std::function<void(Walk &)>> job_;
  std::atomic<uint32_t> job_number_{0};
  std::atomic<bool> is_over_{false};
  Signal start_, progress_;
  std::vector<std::thread> workers_;
};

}  // namespace midstream
