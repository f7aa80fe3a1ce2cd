#pragma once

#include <chrono>

namespace kz {

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// What now_s() is at, for those who wait until then.
inline std::chrono::steady_clock::time_point moment(double s) {
    using Clock = std::chrono::steady_clock;
    return Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s)));
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
