// ARMv8.2 dot products: four products of bytes in each lane.  Both factors are signed, or neither
// is: high bytes meet the weights, low bytes the weights as they are stored, plus 128 (plus 8).
#if !defined(__ARM_FEATURE_DOTPROD)
#error "quant_dotprod.cpp needs -march=armv8.2-a+dotprod"
#endif
#define KZ_ISA dotprod
#include "nn/kernels/quant_bytes.h"

namespace kz {
namespace {
namespace simd_dotprod {

constexpr int kTotalMask = 0xff;  // only low bytes meet the constant in the stored weights
template <int BITS, int M>
constexpr int kPanels = M == 1   ? 4
                        : M <= 3 ? 2
                                 : 1;

// Sums of the high and of the low bytes of M rows with four outputs.
template <int M>
struct Sums {
    int32x4_t high[M] = {};
    uint32x4_t low[M] = {};

    // The inputs of lane I.
    template <int BITS, int I>
    void add(uint8x16_t stored, const uint8x16_t (&x)[M], const uint8x16_t (&y)[M]) {
        const int8x16_t w = vreinterpretq_s8_u8(vsubq_u8(stored, vdupq_n_u8(1 << (BITS - 1))));
#pragma GCC unroll 4
        for (int r = 0; r < M; r++) {
            high[r] = vdotq_laneq_s32(high[r], w, vreinterpretq_s8_u8(x[r]), I);
            low[r] = vdotq_laneq_u32(low[r], stored, y[r], I);
            KZ_IN_ORDER("w", high[r]);
            KZ_IN_ORDER("w", low[r]);
        }
    }
};

template <int BITS, int M, int P>
inline void block_sums(const QuantGemmArgs &g, int m0, int b, const uint8_t *v, size_t panel_bytes,
                       v4i (&out)[P][M]) {
    const uint8_t *a = row_bytes(g, m0, b);
    const ptrdiff_t stride = row_stride(g);
    Sums<M> sums[P];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {  // 16 inputs
        uint8x16_t x[M], y[M];
#pragma GCC unroll 4
        for (int r = 0; r < M; r++) {
            x[r] = vld1q_u8(a + r * stride + 16 * half);
            y[r] = vld1q_u8(a + r * stride + 16 * half + kQuantBlock);
        }
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *panel = v + static_cast<size_t>(p) * panel_bytes;
            sums[p].template add<BITS, 0>(weights<BITS>(panel, 4 * half), x, y);
            sums[p].template add<BITS, 1>(weights<BITS>(panel, 4 * half + 1), x, y);
            sums[p].template add<BITS, 2>(weights<BITS>(panel, 4 * half + 2), x, y);
            sums[p].template add<BITS, 3>(weights<BITS>(panel, 4 * half + 3), x, y);
        }
    }
    for (int p = 0; p < P; p++) {
        for (int r = 0; r < M; r++) {
            out[p][r] = reinterpret_cast<v4i>(
                vaddq_s32(vshlq_n_s32(sums[p].high[r], 8), vreinterpretq_s32_u32(sums[p].low[r])));
        }
    }
}

}  // namespace simd_dotprod
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_impl.h"
