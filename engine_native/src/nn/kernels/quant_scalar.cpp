// The plain twin of the integer kernels: one output at a time, sums in double.
#include <cmath>
#include <cstring>

#include "nn/kernels/quant_kernels.h"

namespace kz {
namespace {

constexpr QuantLayout kLayout{1, false, 16};

void round_row(const float *x, int n, int16_t *q, float *scale, int32_t *total) {
    for (int b = 0; b < n / kQuantBlock; b++, x += kQuantBlock, q += kQuantBlock) {
        float max = 0, poison = 0;
        for (int i = 0; i < kQuantBlock; i++) {
            max = std::fmax(max, std::fabs(x[i]));
            poison += x[i] * 0.0f;
        }
        scale[b] = poison != 0.0f ? poison : max / 32767.0f;
        total[b] = 0;
        const float inverse = poison == 0.0f && max > 1e-30f ? 32767.0f / max : 0.0f;
        for (int i = 0; i < kQuantBlock; i++) {
            q[i] = inverse > 0.0f ? static_cast<int16_t>(std::nearbyint(x[i] * inverse)) : 0;
            total[b] += q[i];
        }
    }
}

template <int BITS>
void gemm(const QuantGemmArgs &g) {
    const int blocks = g.in / kQuantBlock;
    for (int m = 0; m < g.m; m++) {
        for (int n = g.panel0; n < g.panel1; n++) {
            const uint8_t *w = g.w + static_cast<size_t>(n) * kLayout.panel_bytes(BITS, g.in);
            double sum = 0;
            for (int b = 0; b < blocks; b++, w += kLayout.block_bytes(BITS)) {
                const int16_t *a = g.a.q + static_cast<ptrdiff_t>(m) * g.in + b * kQuantBlock;
                int32_t products = 0;
                for (int i = 0; i < kQuantBlock; i++) {
                    constexpr int kParts = 16 / BITS;
                    uint16_t word;
                    std::memcpy(&word, w + 4 + i / (2 * kParts) * 4 + i % 2 * 2, sizeof(word));
                    const int part = i % (2 * kParts) / 2;
                    const int weight =
                        (word >> (part * BITS) & ((1 << BITS) - 1)) - (1 << (BITS - 1));
                    products += a[i] * weight;
                }
                float scale;
                std::memcpy(&scale, w, sizeof(scale));
                sum += static_cast<double>(products) * scale *
                       g.a.scale[static_cast<ptrdiff_t>(m) * blocks + b];
            }
            float &c = g.c[m * g.c_row + n];
            c = static_cast<float>(g.accumulate ? c + sum : sum);
        }
    }
}

}  // namespace

extern const QuantKernels quant_scalar;
const QuantKernels quant_scalar = {"scalar", kLayout, round_row, gemm<8>, gemm<4>};

}  // namespace kz
