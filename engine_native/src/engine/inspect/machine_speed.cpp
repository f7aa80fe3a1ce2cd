#include "engine/inspect/machine_speed.h"

#if defined(__linux__)
#include <unistd.h>
#endif

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "nn/kernels/panels.h"
#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

namespace {

// A residual unit of the decoder's third block: 7 taps of 192 channels to 192, 640 steps.
constexpr int kSteps = 640, kTaps = 7, kChannels = 192;
constexpr size_t kBlock = 1 << 15;  // floats: their products sum up exactly
constexpr int64_t kLeast = 256 << 20, kMost = 512 << 20;

// f(i) once for every i of [0, n), each in a thread of its own.
template <typename F>
void on_threads(int n, const F &f) {
    std::vector<std::jthread> others;
    for (int i = 1; i < n; i++) others.emplace_back([&f, i] { f(i); });
    f(0);
}

// Seconds of the fastest pass within the budget, at least two passes.
template <typename F>
double best_pass(double budget, const F &pass) {
    double best = 1e9;
    const double start = now_s();
    for (int n = 0; n < 2 || now_s() - start < budget; n++) {
        const double begin = now_s();
        pass();
        best = std::min(best, now_s() - begin);
    }
    return best;
}

// Eight times the last-level cache where it is known, within bounds and a quarter of what memory
// is free.
int64_t beyond_caches() {
    int64_t bytes = kLeast;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    bytes = std::max<int64_t>(bytes, 8 * static_cast<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE)));
#endif
    bytes = std::min(bytes, kMost);
#if defined(_SC_AVPHYS_PAGES)
    const int64_t free = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    if (free > 0) bytes = std::min(bytes, free / 4);
#endif
    return bytes;
}

// Memory that is read in equal parts by 1..threads threads.
class ReadTest {
  public:
    ReadTest(const Kernels &kernels, int threads, int64_t bytes)
        : kernels_(kernels),
          pairs_(std::max<size_t>(static_cast<size_t>(bytes) / (2 * kBlock * sizeof(float)),
                                  static_cast<size_t>(threads))),
          data_(new float[pairs_ * 2 * kBlock]) {
        on_threads(threads, [&](int i) {  // each thread's part on its own memory node
            std::fill(at(i, threads), at(i + 1, threads), 1.0f);
        });
    }

    int64_t bytes() const { return static_cast<int64_t>(pairs_ * 2 * kBlock * sizeof(float)); }

    void pass(int threads) {
        std::vector<double> sums(static_cast<size_t>(threads));
        on_threads(threads, [&](int i) {
            double sum = 0;
            for (const float *p = at(i, threads); p < at(i + 1, threads); p += 2 * kBlock)
                sum += kernels_.dot(p, p + kBlock, static_cast<int>(kBlock));
            sums[static_cast<size_t>(i)] = sum;
        });
        double total = 0;
        for (const double sum : sums) total += sum;
        // Proof that every value was read.
        if (total != static_cast<double>(pairs_ * kBlock))
            fail(KZ_ERR_INTERNAL, "the memory measurement read %.0f values of %zu", total,
                 pairs_ * kBlock);
    }

  private:
    float *at(int i, int threads) const {
        return data_.get() +
               pairs_ * static_cast<size_t>(i) / static_cast<size_t>(threads) * 2 * kBlock;
    }

    const Kernels &kernels_;
    const size_t pairs_;                   // of blocks
    const std::unique_ptr<float[]> data_;  // not initialised here: see the constructor
};

// The same product in every thread, on its own input and output.
class GemmTest {
  public:
    GemmTest(const Kernels &kernels, int threads)
        : kernels_(kernels),
          w_(kernels, WeightType::f32, kTaps * kChannels, kChannels),
          a_(static_cast<size_t>(threads),
             FloatBuffer(static_cast<size_t>(kSteps + kTaps - 1) * kChannels, 1.0f)),
          c_(static_cast<size_t>(threads), FloatBuffer(static_cast<size_t>(kSteps) * kChannels)) {
        const FloatBuffer halves(static_cast<size_t>(kTaps) * kChannels * kChannels, 0.5f);
        w_.put(0, 0, kChannels, kChannels, kTaps, halves.data());
    }

    static constexpr double kFlops = 2.0 * kSteps * kTaps * kChannels * kChannels;

    void pass(int threads) {
        on_threads(threads, [&](int i) {
            const auto t = static_cast<size_t>(i);
            kernels_.gemm({a_[t].data(), kChannels, kChannels, kTaps, kChannels, w_.plane(),
                           w_.type(), nullptr, c_[t].data(), kChannels, kSteps, kChannels, false});
        });
        for (size_t t = 0; t < static_cast<size_t>(threads); t++) {
            if (c_[t].front() != 0.5f * kTaps * kChannels || c_[t].back() != c_[t].front())
                fail(KZ_ERR_INTERNAL, "the product of the measurement is %g, expected %g",
                     static_cast<double>(c_[t].back()), 0.5 * kTaps * kChannels);
        }
    }

  private:
    const Kernels &kernels_;
    Panels w_;
    std::vector<FloatBuffer> a_, c_;
};

}  // namespace

MachineSpeed measure_machine(const Kernels &kernels, int threads, double seconds,
                             int64_t working_set) {
    MachineSpeed speed;
    speed.threads = threads;
    speed.kernels = kernels.name;
    const double budget = seconds / 5;  // four figures, and memory to be filled
    const int counts[2] = {1, threads};
    {
        ReadTest test(kernels, threads, working_set > 0 ? working_set : beyond_caches());
        speed.working_set = test.bytes();
        for (int i = 0; i < 2; i++) {
            const double best = best_pass(budget, [&] { test.pass(counts[i]); });
            speed.read_gbs[i] = static_cast<double>(test.bytes()) / best / 1e9;
        }
    }
    GemmTest test(kernels, threads);
    for (int i = 0; i < 2; i++) {
        const double best = best_pass(budget, [&] { test.pass(counts[i]); });
        speed.gemm_gflops[i] = GemmTest::kFlops * counts[i] / best / 1e9;
    }
    return speed;
}

}  // namespace kz
