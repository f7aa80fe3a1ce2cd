// 128-bit vectors: what every x86-64 (SSE2) and every ARMv8-A (NEON) processor has.
#include <cstdint>
#include <cstring>

#include "nn/kernels/isa_macros.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#else
#error "quant_vec128.cpp knows SSE2 and 64-bit NEON"
#endif

#define KZ_ISA vec128
#define KZ_VW 4

namespace kz {
namespace {
namespace simd_vec128 {

using v4i = int __attribute__((vector_size(16)));
using v4f = float __attribute__((vector_size(16)));

#if defined(__aarch64__)
#define KZ_HALF 1

using vs = int16x8_t;
struct Acc {  // the products of even and odd inputs side by side until lanes()
    int32x4_t low, high;
};

inline vs pair(const int16_t *p) {
    int32_t both;
    std::memcpy(&both, p, sizeof(both));
    return vreinterpretq_s16_s32(vdupq_n_s32(both));
}
inline void mac(Acc &acc, vs w, vs a) {
    acc.low = vmlal_s16(acc.low, vget_low_s16(w), vget_low_s16(a));
    acc.high = vmlal_high_s16(acc.high, w, a);
    KZ_IN_ORDER("w", acc.low);
    KZ_IN_ORDER("w", acc.high);
}
inline v4i lanes(const Acc &acc) {
    return reinterpret_cast<v4i>(vpaddq_s32(acc.low, acc.high));
}
inline v4f scales(const uint8_t *p) {
    return reinterpret_cast<v4f>(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))));
}
#else
#define KZ_HALF 0

using vs = __m128i;
using Acc = __m128i;

inline vs pair(const int16_t *p) {
    int both;
    std::memcpy(&both, p, sizeof(both));
    return _mm_set1_epi32(both);
}
inline void mac(Acc &acc, vs w, vs a) {
    acc = _mm_add_epi32(acc, _mm_madd_epi16(w, a));
    KZ_IN_ORDER("x", acc);
}
inline v4i lanes(const Acc &acc) {
    v4i v;
    std::memcpy(&v, &acc, sizeof(v));
    return v;
}
inline v4f scales(const uint8_t *p) {
    v4f v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
#endif

}  // namespace simd_vec128
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_words.h"

#include "nn/kernels/quant_impl.h"
