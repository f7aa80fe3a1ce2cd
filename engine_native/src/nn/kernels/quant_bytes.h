// What the sets of 8-bit products of 64-bit ARM share: a rounded row is split into its high and its
// low bytes, each of which is multiplied with the weights; 256 * high + low is the exact sum.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nn/kernels/isa_macros.h"
#include "nn/kernels/quant_kernels.h"

#define KZ_VW 4
#define KZ_HALF 1

namespace kz {
namespace {
namespace KZ_SIMD {

using v4i = int __attribute__((vector_size(16)));
using v4f = float __attribute__((vector_size(16)));

constexpr int kWordBits = 8;

// 32 values -> their 32 high bytes (signed), then their 32 low bytes (unsigned).
inline void arrange(int16_t *q) {
    auto *p = reinterpret_cast<uint8_t *>(q);
    const uint8x16x2_t first = vld2q_u8(p), second = vld2q_u8(p + kQuantBlock);
    vst1q_u8(p, first.val[1]);
    vst1q_u8(p + 16, second.val[1]);
    vst1q_u8(p + 32, first.val[0]);
    vst1q_u8(p + 48, second.val[0]);
}

// Weights of inputs 4 * group .. 4 * group + 3 for each of four outputs, of a block that begins at
// v.
template <int BITS>
inline uint8x16_t weights(const uint8_t *v, int group) {
    if constexpr (BITS == 8) return vld1q_u8(v + 16 * group);
    const uint8x16_t both = vld1q_u8(v + 16 * (group / 2));
    return group % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
}

inline v4f scales(const uint8_t *p) {
    return reinterpret_cast<v4f>(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))));
}

// The bytes of the block's first row, and from row to row.
inline const uint8_t *row_bytes(const QuantGemmArgs &g, int m0, int b) {
    return reinterpret_cast<const uint8_t *>(g.a.q + static_cast<ptrdiff_t>(m0) * g.in +
                                             b * kQuantBlock);
}
inline ptrdiff_t row_stride(const QuantGemmArgs &g) {
    return static_cast<ptrdiff_t>(g.in) * static_cast<ptrdiff_t>(sizeof(int16_t));
}

}  // namespace KZ_SIMD
}  // namespace
}  // namespace kz
