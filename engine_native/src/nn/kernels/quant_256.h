// 256-bit vectors of x86, for quant_avx2.cpp and quant_avxvnni.cpp: what VNNI adds is the
// multiply-add in one instruction.  Of its two, the one of 16-bit words: the rows have 16 bits, and
// the one of bytes would be needed twice for as many products.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "nn/kernels/isa_macros.h"

#define KZ_VW 8
#define KZ_HALF 1

namespace kz {
namespace {
namespace KZ_SIMD {

using vs = __m256i;
using Acc = __m256i;

inline __m128i load16(const uint8_t *p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
}
inline vs pair(const int16_t *p) {
    int both;
    std::memcpy(&both, p, sizeof(both));
    return _mm256_set1_epi32(both);
}
inline void mac(Acc &acc, vs w, vs a) {
#if defined(__AVXVNNI__)
    acc = _mm256_dpwssd_avx_epi32(acc, w, a);
#else
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, a));
    KZ_IN_ORDER("x", acc);
#endif
}
inline auto lanes(const Acc &acc) {
    int __attribute__((vector_size(32))) v;
    std::memcpy(&v, &acc, sizeof(v));
    return v;
}
inline auto scales(const uint8_t *p) {
    return _mm256_cvtph_ps(load16(p));
}

}  // namespace KZ_SIMD
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_words.h"

#include "nn/kernels/quant_impl.h"
