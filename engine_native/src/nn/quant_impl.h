// The one body of the integer kernels.  The including file defines
//   KZ_ISA    a name
//   KZ_VW     outputs of a panel: 32-bit lanes of a vector
//   KZ_HALF   1: scales are f16
// and these, in a namespace simd_<KZ_ISA> of kz:
//   vs               2 * KZ_VW int16
//   Acc              sums of products of int16 pairs
//   vs pair(const int16_t *)          two neighbouring values in every lane
//   void mac(Acc &, vs w, vs a)       adds w[2i] * a[2i] + w[2i+1] * a[2i+1] to lane i
//   lanes(const Acc &)                the sums, KZ_VW int32
//   scales(const uint8_t *)           KZ_VW scales
//
// Integer sums are exact and every output is one chain of multiply-adds over the blocks of inputs:
// a result does not depend on the rows beside it nor on how panels are shared out, so a prompt
// computed at once, in pieces, or beside other streams gives the same bits.

#include <cmath>
#include <cstring>
#include <type_traits>

#include "nn/quant_kernels.h"

namespace kz {
namespace {

using vf = float __attribute__((vector_size(KZ_VW * 4)));
using vi = int __attribute__((vector_size(KZ_VW * 4)));
using vw = uint16_t __attribute__((vector_size(KZ_VW * 4)));
using namespace KZ_CONCAT(simd_, KZ_ISA);

constexpr int kOutputs = KZ_VW;
constexpr QuantLayout kLayout{kOutputs, KZ_HALF != 0};
constexpr int kScaleBytes = kOutputs * (KZ_HALF ? 2 : 4);
template <int BITS>
constexpr size_t kBlockBytes =
    static_cast<size_t>(kScaleBytes) + static_cast<size_t>(kOutputs) * kQuantBlock * BITS / 8;
constexpr size_t kPrefetch = 1024;  // bytes ahead in each panel

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

// One block of inputs of M rows with P neighbouring panels.
template <int BITS, int M, int P>
inline void block(const QuantGemmArgs &g, int m0, int b, const uint8_t *w, vf (&acc)[P][M]) {
    constexpr int kPairs = 16 / BITS;  // of inputs in a word
    const size_t panel_bytes = kLayout.panel_bytes(BITS, g.in);
    const int16_t *a = g.a.q + static_cast<ptrdiff_t>(m0) * g.in + b * kQuantBlock;
    const uint8_t *v = w + kScaleBytes;
    for (int p = 0; p < P; p++) {
        for (size_t l = 0; l < kBlockBytes<BITS>; l += 64)
            __builtin_prefetch(w + static_cast<size_t>(p) * panel_bytes + kPrefetch + l);
    }
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
    for (int i = 0; i < kQuantBlock; i += 2 * kPairs, v += 4 * kOutputs) {
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
    const int blocks = g.in / kQuantBlock;
    for (int p = 0; p < P; p++) {
        const vf scale = scales(w + static_cast<size_t>(p) * panel_bytes);
        for (int r = 0; r < M; r++) {
            const ptrdiff_t at = static_cast<ptrdiff_t>(m0 + r) * blocks + b;
            const vi sum = lanes(sums[p][r]) - (1 << (BITS - 1)) * g.a.total[at];
            acc[p][r] += __builtin_convertvector(sum, vf) * (scale * g.a.scale[at]);
        }
    }
}

template <int BITS, int M, int P>
void tile(const QuantGemmArgs &g, int m0, int panel) {
    const uint8_t *w = g.w + static_cast<size_t>(panel) * kLayout.panel_bytes(BITS, g.in);
    vf acc[P][M] = {};
    for (int b = 0; b < g.in / kQuantBlock; b++, w += kBlockBytes<BITS>)
        block<BITS, M, P>(g, m0, b, w, acc);
    for (int p = 0; p < P; p++) {
        const int n0 = (panel + p) * kOutputs;
        const int n = g.n - n0 < kOutputs ? g.n - n0 : kOutputs;
        for (int r = 0; r < M; r++) {
            float *c = g.c + (m0 + r) * g.c_row + n0;
            for (int j = 0; j < n; j++) c[j] = g.accumulate ? c[j] + acc[p][r][j] : acc[p][r][j];
        }
    }
}

// Few rows leave few sums for each load of a row: more panels at once.  Unpacking 4 bits keeps the
// registers busy with one.
template <int BITS, int M>
void rows(const QuantGemmArgs &g, int m0, int panel0, int panel1) {
    constexpr int kPanels = BITS == 4 ? 1 : M == 1 ? 4 : M <= 3 ? 2 : 1;
    int p = panel0;
    for (; p + kPanels <= panel1; p += kPanels) tile<BITS, M, kPanels>(g, m0, p);
    for (; p < panel1; p++) tile<BITS, M, 1>(g, m0, p);
}

template <int BITS>
void gemm(const QuantGemmArgs &g) {
    // Few panels at a time, so that they are still in the first-level cache for the next rows.
    for (int p = g.panel0; p < g.panel1; p += 4) {
        const int end = p + 4 < g.panel1 ? p + 4 : g.panel1;
        int m = 0;
        for (; m + 4 <= g.m; m += 4) rows<BITS, 4>(g, m, p, end);
        if (g.m - m == 3) rows<BITS, 3>(g, m, p, end);
        if (g.m - m == 2) rows<BITS, 2>(g, m, p, end);
        if (g.m - m == 1) rows<BITS, 1>(g, m, p, end);
    }
}

void round_row(const float *x, int n, int16_t *q, float *scale, int32_t *total) {
    for (int b = 0; b < n / kQuantBlock; b++, x += kQuantBlock, q += kQuantBlock) {
        vf most{}, bad{};
        for (int i = 0; i < kQuantBlock; i += kOutputs) {
            vf v;
            std::memcpy(&v, x + i, sizeof(v));
            v = v < 0.0f ? -v : v;
            most = v > most ? v : most;
            bad += v * 0.0f;
        }
        float max = 0;
        float poison = 0;  // NaN when a value is not finite: rounding must not hide it
        for (int i = 0; i < kOutputs; i++) {
            max = most[i] > max ? most[i] : max;
            poison += bad[i];
        }
        const float inverse = max > 1e-30f ? 32767.0f / max : 0.0f;  // no infinity
        const vf magic = 12582912.0f - vf{};  // rounds to the nearest integer below 2^22
        vi sum{};
        for (int i = 0; i < kQuantBlock; i += kOutputs) {
            vf v;
            std::memcpy(&v, x + i, sizeof(v));
            const vi rounded = __builtin_convertvector((v * inverse + magic) - magic, vi);
            sum += rounded;
            using narrow = int16_t __attribute__((vector_size(KZ_VW * 2)));
            const narrow out = __builtin_convertvector(rounded, narrow);
            std::memcpy(q + i, &out, sizeof(out));
        }
        total[b] = 0;
        for (int i = 0; i < kOutputs; i++) total[b] += sum[i];
        scale[b] = max / 32767.0f + poison;
    }
}

}  // namespace

extern const QuantKernels KZ_CONCAT(quant_, KZ_ISA);
const QuantKernels KZ_CONCAT(quant_, KZ_ISA) = {KZ_STRING(KZ_ISA), kLayout, round_row, gemm<8>,
                                                gemm<4>};

}  // namespace kz
