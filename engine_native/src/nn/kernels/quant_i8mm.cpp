// ARMv8.6 matrix products of bytes: two rows by two outputs over eight inputs in one instruction,
// the stored weights unsigned.  A row without a partner is its own.
#if !defined(__ARM_FEATURE_MATMUL_INT8)
#error "quant_i8mm.cpp needs -march=armv8.2-a+i8mm"
#endif
#define KZ_ISA i8mm
#include "nn/kernels/quant_bytes.h"

namespace kz {
namespace {
namespace simd_i8mm {

constexpr int kTotalMask = -1;
template <int BITS, int M>
constexpr int kPanels = M <= 2 ? 4 : 2;

// The same eight bytes of two rows.
inline uint8x16_t two_rows(const uint8_t *a, const uint8_t *b) {
    return vcombine_u8(vld1_u8(a), vld1_u8(b));
}

// Sums of outputs 0, 1 or 2, 3 (in two neighbouring lanes each) with two rows (even and odd lanes).
struct Square {
    int32x4_t high;
    uint32x4_t low;

    void add(uint8x16_t w, uint8x16_t high_bytes, uint8x16_t low_bytes) {
        high = vusmmlaq_s32(high, w, vreinterpretq_s8_u8(high_bytes));
        low = vmmlaq_u32(low, w, low_bytes);
        KZ_IN_ORDER("w", high);
        KZ_IN_ORDER("w", low);
    }
    int32x4_t sum() const { return vaddq_s32(vshlq_n_s32(high, 8), vreinterpretq_s32_u32(low)); }
};

template <int BITS, int M, int P>
inline void block_sums(const QuantGemmArgs &g, int m0, int b, const uint8_t *v, size_t panel_bytes,
                       v4i (&out)[P][M]) {
    constexpr int kPairs = (M + 1) / 2;
    const uint8_t *a = row_bytes(g, m0, b);
    const ptrdiff_t stride = row_stride(g);
    Square sums[P][kPairs][2] = {};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {  // 8 inputs
        uint8x16_t x[kPairs], y[kPairs];
#pragma GCC unroll 2
        for (int q = 0; q < kPairs; q++) {
            const uint8_t *even = a + 2 * q * stride + 8 * i;
            const uint8_t *odd = 2 * q + 1 < M ? even + stride : even;
            x[q] = two_rows(even, odd);
            y[q] = two_rows(even + kQuantBlock, odd + kQuantBlock);
        }
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *panel = v + static_cast<size_t>(p) * panel_bytes;
            const uint32x4_t first = vreinterpretq_u32_u8(weights<BITS>(panel, 2 * i));
            const uint32x4_t second = vreinterpretq_u32_u8(weights<BITS>(panel, 2 * i + 1));
            const uint8x16_t w01 = vreinterpretq_u8_u32(vzip1q_u32(first, second));
            const uint8x16_t w23 = vreinterpretq_u8_u32(vzip2q_u32(first, second));
#pragma GCC unroll 2
            for (int q = 0; q < kPairs; q++) {
                sums[p][q][0].add(w01, x[q], y[q]);
                sums[p][q][1].add(w23, x[q], y[q]);
            }
        }
    }
    for (int p = 0; p < P; p++) {
        for (int r = 0; r < M; r++) {
            const int32x4_t s01 = sums[p][r / 2][0].sum(), s23 = sums[p][r / 2][1].sum();
            out[p][r] = reinterpret_cast<v4i>(r % 2 ? vuzp2q_s32(s01, s23) : vuzp1q_s32(s01, s23));
        }
    }
}

}  // namespace simd_i8mm
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_impl.h"
