// 512-bit vectors of x86, for quant_avx512.cpp and quant_avx512vnni.cpp: what VNNI adds is the
// multiply-add in one instruction.  Of its two, the one of 16-bit words: the rows have 16 bits, and
// the one of bytes would be needed twice for as many products.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "nn/kernels/isa_macros.h"

#define KZ_VW 16
#define KZ_HALF 1

namespace kz {
namespace {
namespace KZ_SIMD {

using vs = __m512i;
using Acc = __m512i;

inline __m256i load32(const uint8_t *p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
inline vs pair(const int16_t *p) {
    int both;
    std::memcpy(&both, p, sizeof(both));
    return _mm512_set1_epi32(both);
}
inline void mac(Acc &acc, vs w, vs a) {
#if defined(__AVX512VNNI__)
    acc = _mm512_dpwssd_epi32(acc, w, a);
#else
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w, a));
    KZ_IN_ORDER("v", acc);
#endif
}
inline auto lanes(const Acc &acc) {
    int __attribute__((vector_size(64))) v;
    std::memcpy(&v, &acc, sizeof(v));
    return v;
}
inline auto scales(const uint8_t *p) {
    return _mm512_maskz_cvtph_ps(0xffff, load32(p));
}

}  // namespace KZ_SIMD
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_words.h"

#include "nn/kernels/quant_impl.h"
