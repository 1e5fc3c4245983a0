// Owns the measuring of a step's parts.
#pragma once

#include <chrono>
#include <cstdint>

#include "interface.h"

namespace midstream {

// Adds up where the time of steps goes, as one thread sees it; does nothing where nobody asked.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t *part_ns) : part_ns_(part_ns) {
    if (part_ns_ != nullptr) last_ = now();
  }

  void lap(Part part) {
    if (part_ns_ == nullptr) return;
    const int64_t time = now();
    part_ns_[part] += time - last_;
    last_ = time;
  }

 private:
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

  int64_t *part_ns_;
  int64_t last_ = 0;
};

}  // namespace midstream
