// The integer kernels with the layout of AVX-512, on vectors that every processor runs: its tiles
// and its packing are tested where the instructions are missing.
#include <ggml.h>

#include <cstdint>
#include <cstring>

#include "nn/kernels/isa_macros.h"

#define KZ_ISA vec512
#define KZ_VW 16
#define KZ_HALF 1

namespace kz {
namespace {
namespace simd_vec512 {

using vs = int16_t __attribute__((vector_size(64)));
using Acc = int32_t __attribute__((vector_size(64)));

inline vs pair(const int16_t *p) {
    vs v;
    for (int i = 0; i < 32; i += 2) std::memcpy(reinterpret_cast<int16_t *>(&v) + i, p, 4);
    return v;
}
inline void mac(Acc &acc, vs w, vs a) {
    for (int i = 0; i < 16; i++) acc[i] += w[2 * i] * a[2 * i] + w[2 * i + 1] * a[2 * i + 1];
}
inline Acc lanes(const Acc &acc) {
    return acc;
}
inline auto scales(const uint8_t *p) {
    float __attribute__((vector_size(64))) v;
    for (int i = 0; i < 16; i++) {
        ggml_fp16_t half;
        std::memcpy(&half, p + 2 * i, sizeof(half));
        v[i] = ggml_fp16_to_fp32(half);
    }
    return v;
}

}  // namespace simd_vec512
}  // namespace
}  // namespace kz

#include "nn/kernels/quant_words.h"

#include "nn/kernels/quant_impl.h"
