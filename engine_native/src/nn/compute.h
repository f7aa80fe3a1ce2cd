// What a layer computes with: a set of kernels and the threads that share its work.  How work is
// divided never changes a result, because every output is computed whole by one call.
#pragma once

#include <algorithm>

#include "nn/kernels/float_kernels.h"
#include "runtime/team.h"

namespace kz {

struct Compute {
    const Kernels &k;
    Team &team;

    // f(first, last) over [0, n) in pieces of at least grain units; one piece without helpers.
    template <typename F>
    void share(int n, int grain, const F &f) const {
        const int helpers = team.helpers();
        const int pieces =
            helpers == 0 ? 1 : std::clamp(n / std::max(grain, 1), 1, 4 * (helpers + 1));
        team.run(pieces, [&](int i) {
            const auto at = [&](int j) { return static_cast<int>(int64_t{n} * j / pieces); };
            f(at(i), at(i + 1));
        });
    }

    // As k.gemm.
    void gemm(const GemmArgs &args) const;
};

// Multiply-adds, and values a transcendental function is taken of, that take some tens of
// microseconds: less is not worth another thread.
constexpr int kGrainProducts = 500'000, kGrainValues = 16'384;

// The part of a product that computes the panels first .. last - 1 of nr columns.
GemmArgs panel_range(const GemmArgs &args, int nr, int first, int last);

}  // namespace kz
