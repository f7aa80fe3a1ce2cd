#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "quant_avx2.cpp needs -mavx2 -mfma -mf16c"
#endif
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "nn/isa_macros.h"

#define KZ_ISA avx2
#define KZ_VW 8
#define KZ_HALF 1

namespace kz {
namespace {
namespace simd_avx2 {

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
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, a));
    KZ_IN_ORDER("x", acc);
}
inline auto lanes(const Acc &acc) {
    int __attribute__((vector_size(32))) v;
    std::memcpy(&v, &acc, sizeof(v));
    return v;
}
inline auto scales(const uint8_t *p) {
    return _mm256_cvtph_ps(load16(p));
}

}  // namespace simd_avx2
}  // namespace
}  // namespace kz

#include "nn/quant_impl.h"
