#pragma once

#include <chrono>

namespace kz {

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Adds the seconds of its own lifetime to a counter.
class ScopedTimer {
  public:
    explicit ScopedTimer(double &total) : total_(total), start_(now_s()) {}
    ~ScopedTimer() { total_ += now_s() - start_; }
    ScopedTimer(const ScopedTimer &) = delete;
    ScopedTimer &operator=(const ScopedTimer &) = delete;

  private:
    double &total_;
    double start_;
};

}  // namespace kz
