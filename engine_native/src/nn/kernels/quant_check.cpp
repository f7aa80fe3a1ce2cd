// Whether a set of integer kernels computes correctly on this processor.
#include <cmath>
#include <vector>

#include "nn/kernels/kernel_sets.h"

namespace kz {

namespace {

// Small products that meet every tile: one to five rows (taken four, three, two or one at a time),
// and outputs of more than four of the widest panels, the last of them partly filled.
constexpr int kMostRows = 5, kIn = 2 * kQuantBlock, kOut = 5 * 16 + 5;

// Weights of every value, with scales 2^-6 and 2^-7 (0x2400 and 0x2000 in f16).
std::vector<uint8_t> weights(int bits) {
    const int bytes = kQuantBlock * bits / 8;
    std::vector<uint8_t> rows;
    for (int b = 0; b < kOut * kIn / kQuantBlock; b++) {
        rows.push_back(0);
        rows.push_back(b % 2 ? 0x20 : 0x24);
        for (int i = 0; i < bytes; i++) rows.push_back(static_cast<uint8_t>(b * 91 + i * 57));
    }
    return rows;
}

std::vector<float> product(const QuantKernels &k, int bits, int rows, bool accumulate) {
    const int panels = k.layout.panels(kOut), blocks = kIn / kQuantBlock;
    std::vector<uint8_t> packed(k.layout.panel_bytes(bits, kIn) * static_cast<size_t>(panels));
    pack_quant(k.layout, bits, weights(bits).data(), kIn, kOut, packed.data());
    std::vector<int16_t> q(static_cast<size_t>(rows * kIn));
    std::vector<float> scale(static_cast<size_t>(rows * blocks));
    std::vector<int32_t> total(scale.size());
    for (int r = 0; r < rows; r++) {
        float x[kIn];
        for (int i = 0; i < kIn; i++) x[i] = static_cast<float>((i * 37 + r * 11) % 64 - 31) / 8.0f;
        k.round_row(x, kIn, q.data() + r * kIn, scale.data() + r * blocks,
                    total.data() + r * blocks);
    }
    std::vector<float> c(static_cast<size_t>(rows * kOut), 1.0f);
    (bits == 8 ? k.gemm8 : k.gemm4)({{q.data(), scale.data(), total.data()},
                                     rows,
                                     kIn,
                                     packed.data(),
                                     c.data(),
                                     kOut,
                                     kOut,
                                     0,
                                     panels,
                                     accumulate});
    return c;
}

}  // namespace

bool computes_correctly(const QuantKernels &set) {
    for (const int bits : {8, 4}) {
        for (int rows = 1; rows <= kMostRows; rows++) {
            const bool accumulate = rows % 2 == 0;
            const std::vector<float> expected = product(quant_scalar, bits, rows, accumulate),
                                     got = product(set, bits, rows, accumulate);
            for (size_t i = 0; i < expected.size(); i++) {
                const float tolerance = 1e-4f * (1.0f + std::fabs(expected[i]));
                if (!(std::fabs(got[i] - expected[i]) <= tolerance)) return false;
            }
        }
    }
    return true;
}

}  // namespace kz
