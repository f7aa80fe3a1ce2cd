#if !defined(__AVX512F__) || !defined(__AVX512BW__)
#error "quant_avx512.cpp needs -mavx512f -mavx512bw"
#endif
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "nn/isa_macros.h"

#define KZ_ISA avx512
#define KZ_VW 16
#define KZ_HALF 1

namespace kz {
namespace {
namespace simd_avx512 {

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
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w, a));
    KZ_IN_ORDER("v", acc);
}
inline auto lanes(const Acc &acc) {
    int __attribute__((vector_size(64))) v;
    std::memcpy(&v, &acc, sizeof(v));
    return v;
}
inline auto scales(const uint8_t *p) {
    return _mm512_maskz_cvtph_ps(0xffff, load32(p));
}

}  // namespace simd_avx512
}  // namespace
}  // namespace kz

#include "nn/quant_impl.h"
