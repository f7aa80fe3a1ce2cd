#include "nn/compute.h"

#include "nn/kernels/panels.h"

namespace kz {

GemmArgs panel_range(const GemmArgs &g, int nr, int first, int last) {
    GemmArgs part = g;
    const ptrdiff_t column = static_cast<ptrdiff_t>(first) * nr;
    const auto depth = static_cast<size_t>(g.taps) * static_cast<size_t>(g.width);
    part.w = static_cast<const std::byte *>(g.w) +
             static_cast<size_t>(column) * depth * weight_size(g.type);
    part.bias = g.bias ? g.bias + column : nullptr;
    part.c = g.c + column;
    part.n = std::min(g.n, last * nr) - first * nr;
    return part;
}

void Compute::gemm(const GemmArgs &g) const {
    if (team.helpers() == 0) return k.gemm(g);
    const int64_t depth = static_cast<int64_t>(g.taps) * g.width;
    // Rows are divided where there are enough of them to use each panel well.
    constexpr int kRows = 24;
    if (g.m >= 4 * kRows) {
        const int64_t group = depth * g.n * kRows;
        const int groups = (g.m + kRows - 1) / kRows;
        share(groups, static_cast<int>(kGrainProducts / group) + 1, [&](int first, int last) {
            GemmArgs part = g;
            part.a += static_cast<ptrdiff_t>(first) * kRows * g.a_row;
            part.c += static_cast<ptrdiff_t>(first) * kRows * g.c_row;
            part.m = std::min(g.m, last * kRows) - first * kRows;
            k.gemm(part);
        });
    } else {
        const int64_t panel = depth * g.m * k.nr;
        const int panels = (g.n + k.nr - 1) / k.nr;
        share(panels, static_cast<int>(kGrainProducts / std::max<int64_t>(panel, 1)) + 1,
              [&](int first, int last) { k.gemm(panel_range(g, k.nr, first, last)); });
    }
}

}  // namespace kz
