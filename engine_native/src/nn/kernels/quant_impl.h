// The one body of the integer kernels.  The including file defines
//   KZ_ISA    a name
//   KZ_VW     outputs of a panel: 32-bit lanes of a vector
//   KZ_HALF   1: scales are f16
// and these, in a namespace simd_<KZ_ISA> of kz (quant_words.h gives all but scales() for 16-bit
// words):
//   kWordBits                         of the layout
//   kPanels<BITS, M>                  panels that M rows are multiplied with at once
//   kTotalMask                        the bits of the rounded values that QuantRows::total sums
//   void arrange(int16_t *)           a block of 32 rounded values as the products want them
//   void block_sums<BITS, M, P>(...)  sums of products over a block, of stored weights
//   scales(const uint8_t *)           KZ_VW scales
//
// Integer sums are exact and every output is one chain of multiply-adds over the blocks of inputs:
// a result does not depend on the rows beside it nor on how panels are shared out, so a prompt
// computed at once, in pieces, or beside other streams gives the same bits.

#include <cmath>
#include <cstring>

#include "nn/kernels/quant_kernels.h"

namespace kz {
namespace {

using vf = float __attribute__((vector_size(KZ_VW * 4)));
using vi = int __attribute__((vector_size(KZ_VW * 4)));
using namespace KZ_SIMD;

constexpr int kOutputs = KZ_VW;
constexpr QuantLayout kLayout{kOutputs, KZ_HALF != 0, kWordBits};
constexpr int kScaleBytes = kOutputs * (KZ_HALF ? 2 : 4);
template <int BITS>
constexpr size_t kBlockBytes =
    static_cast<size_t>(kScaleBytes) + static_cast<size_t>(kOutputs) * kQuantBlock * BITS / 8;
constexpr size_t kPrefetch = 1024;  // bytes ahead in each panel

// One block of inputs of M rows with P neighbouring panels.
template <int BITS, int M, int P>
inline void block(const QuantGemmArgs &g, int m0, int b, const uint8_t *w, vf (&acc)[P][M]) {
    const size_t panel_bytes = kLayout.panel_bytes(BITS, g.in);
    for (int p = 0; p < P; p++) {
        for (size_t l = 0; l < kBlockBytes<BITS>; l += 64)
            __builtin_prefetch(w + static_cast<size_t>(p) * panel_bytes + kPrefetch + l);
    }
    vi sums[P][M];
    block_sums<BITS, M, P>(g, m0, b, w + kScaleBytes, panel_bytes, sums);
    const int blocks = g.in / kQuantBlock;
    for (int p = 0; p < P; p++) {
        const vf scale = scales(w + static_cast<size_t>(p) * panel_bytes);
        for (int r = 0; r < M; r++) {
            const ptrdiff_t at = static_cast<ptrdiff_t>(m0 + r) * blocks + b;
            const vi sum = sums[p][r] - (1 << (BITS - 1)) * g.a.total[at];
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

// Few rows leave few sums for each load of a row: more panels at once.
template <int BITS, int M>
void rows(const QuantGemmArgs &g, int m0, int panel0, int panel1) {
    constexpr int kTogether = kPanels<BITS, M>;
    int p = panel0;
    for (; p + kTogether <= panel1; p += kTogether) tile<BITS, M, kTogether>(g, m0, p);
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
        if (poison != 0.0f) {  // no integer stands for such a value: zeros, and a scale of NaN
            std::memset(q, 0, kQuantBlock * sizeof(*q));
            total[b] = 0;
            scale[b] = poison;
            continue;
        }
        const float inverse = max > 1e-30f ? 32767.0f / max : 0.0f;  // no infinity
        const vf magic = 12582912.0f - vf{};  // rounds to the nearest integer below 2^22
        vi sum{};
        for (int i = 0; i < kQuantBlock; i += kOutputs) {
            vf v;
            std::memcpy(&v, x + i, sizeof(v));
            const vi rounded = __builtin_convertvector((v * inverse + magic) - magic, vi);
            sum += rounded & kTotalMask;
            using narrow = int16_t __attribute__((vector_size(KZ_VW * 2)));
            const narrow out = __builtin_convertvector(rounded, narrow);
            std::memcpy(q + i, &out, sizeof(out));
        }
        arrange(q);
        total[b] = 0;
        for (int i = 0; i < kOutputs; i++) total[b] += sum[i];
        scale[b] = max / 32767.0f;
    }
}

}  // namespace

extern const QuantKernels KZ_CONCAT(quant_, KZ_ISA);
const QuantKernels KZ_CONCAT(quant_, KZ_ISA) = {KZ_STRING(KZ_ISA), kLayout, round_row, gemm<8>,
                                                gemm<4>};

}  // namespace kz
