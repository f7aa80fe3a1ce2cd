// Sums of products for quant_impl.h on 16-bit words: rows as they were rounded, weights unpacked to
// 16 bits.  The including file defines KZ_ISA and KZ_VW, and in a namespace simd_<KZ_ISA> of kz:
//   vs               2 * KZ_VW int16
//   Acc              sums of products of int16 pairs
//   vs pair(const int16_t *)          two neighbouring values in every lane
//   void mac(Acc &, vs w, vs a)       adds w[2i] * a[2i] + w[2i+1] * a[2i+1] to lane i
//   lanes(const Acc &)                the sums, KZ_VW int32

#include <cstring>
#include <type_traits>

#include "nn/kernels/quant_kernels.h"

namespace kz {
namespace {
namespace KZ_SIMD {

using vw = uint16_t __attribute__((vector_size(KZ_VW * 4)));
using v32 = int __attribute__((vector_size(KZ_VW * 4)));

constexpr int kWordBits = 16;
constexpr int kTotalMask = -1;
// Unpacking 4 bits keeps the registers busy with one panel.
template <int BITS, int M>
constexpr int kPanels = BITS == 4 ? 1
                        : M == 1  ? 4
                        : M <= 3  ? 2
                                  : 1;

inline void arrange(int16_t *) {}

// Weights 2i and 2i + 1 past `v`, for every output; masking and shifting 16-bit words is cheaper
// than widening bytes.
template <int BITS, int I>
inline vs weights(vw v) {
    constexpr uint16_t kMask = (1 << BITS) - 1;
    vw w = v;
    if constexpr (I > 0) w >>= I * BITS;
    if constexpr ((I + 1) * BITS < 16) w &= kMask;
    vs out;
    std::memcpy(&out, &w, sizeof(out));
    return out;
}

template <int BITS, int M, int P>
inline void block_sums(const QuantGemmArgs &g, int m0, int b, const uint8_t *v, size_t panel_bytes,
                       v32 (&out)[P][M]) {
    constexpr int kPairs = 16 / BITS;  // of inputs in a word
    const int16_t *a = g.a.q + static_cast<ptrdiff_t>(m0) * g.in + b * kQuantBlock;
    Acc sums[P][M] = {};
    const auto step = [&]<int I>(std::integral_constant<int, I>, const vw(&words)[P], int i) {
        vs x[M];
#pragma GCC unroll 4
        for (int r = 0; r < M; r++) x[r] = pair(a + static_cast<ptrdiff_t>(r) * g.in + i + 2 * I);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const vs wi = weights<BITS, I>(words[p]);
#pragma GCC unroll 4
            for (int r = 0; r < M; r++) mac(sums[p][r], wi, x[r]);
        }
    };
#pragma GCC unroll 8
    for (int i = 0; i < kQuantBlock; i += 2 * kPairs, v += sizeof(vw)) {
        vw words[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            std::memcpy(&words[p], v + static_cast<size_t>(p) * panel_bytes, sizeof(vw));
        step(std::integral_constant<int, 0>(), words, i);
        step(std::integral_constant<int, 1>(), words, i);
        if constexpr (kPairs == 4) {
            step(std::integral_constant<int, 2>(), words, i);
            step(std::integral_constant<int, 3>(), words, i);
        }
    }
    for (int p = 0; p < P; p++) {
        for (int r = 0; r < M; r++) out[p][r] = lanes(sums[p][r]);
    }
}

}  // namespace KZ_SIMD
}  // namespace
}  // namespace kz
