// The one body of the vector kernels.  The including file defines
//   KZ_ISA   a name, KZ_VW  floats per vector, KZ_MR  rows of a register tile
// and is compiled for that instruction set.  A tile is KZ_MR rows by two vectors.
//
// Every output of gemm is one chain of multiply-adds in the order of k, whatever the tile it falls
// in: results do not depend on how rows are grouped, which is what makes chunked decoding equal
// to decoding at once bit by bit.

#include <cstring>

#include "nn/kernels.h"

namespace kz {
namespace {

using vf = float __attribute__((vector_size(KZ_VW * 4)));
using vi = int __attribute__((vector_size(KZ_VW * 4)));
constexpr int kVW = KZ_VW;
constexpr int kNV = 2;
constexpr int kNR = kNV * kVW;

inline vf load(const float *p) {
    vf v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
inline void store(float *p, vf v) {
    std::memcpy(p, &v, sizeof(v));
}
inline vf splat(float x) {
    return x - vf{};
}

inline float sum(vf v) {
    float s = 0;
    for (int i = 0; i < kVW; i++) s += v[i];
    return s;
}

// Rounds to the nearest integer for |x| < 2^22.
inline vf round_nearest(vf x) {
    const vf magic = splat(12582912.0f);
    return (x + magic) - magic;
}

// sin(x)^2: reduce by multiples of pi (the square has that period), then an odd series.
inline vf sin_squared(vf x) {
    const vf q = round_nearest(x * 0.318309886183790672f);
    vf r = x - q * 3.140625f;
    r = r - q * 9.67502593994140625e-4f;
    r = r - q * 1.509957990978376432e-7f;
    const vf r2 = r * r;
    vf p = splat(-2.50521083854417188e-8f);
    p = p * r2 + 2.75573192239858907e-6f;
    p = p * r2 - 1.98412698412698413e-4f;
    p = p * r2 + 8.33333333333333333e-3f;
    p = p * r2 - 1.66666666666666667e-1f;
    const vf s = r + r * r2 * p;
    return s * s;
}

// exp(x), clamped to the range where the result is a normal float.
inline vf vexp(vf x) {
    const vf lo = splat(-87.0f), hi = splat(88.0f);
    x = x < lo ? lo : x;
    x = x > hi ? hi : x;
    const vf n = round_nearest(x * 1.44269504088896341f);
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440054690583e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const vf e = p * r * r + r + 1.0f;
    const vi bits = (__builtin_convertvector(n, vi) + 127) << 23;
    vf scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return e * scale;
}

// Loads n < kVW values, zero beyond.
inline vf load_part(const float *p, int n) {
    float tmp[kVW] = {};
    std::memcpy(tmp, p, sizeof(float) * n);
    return load(tmp);
}

template <int MR, int NP>
void tile(const GemmArgs &g, int m0, int panel0) {
    const ptrdiff_t panel_size = static_cast<ptrdiff_t>(g.taps) * g.width * kNR;
    vf acc[MR][NP][kNV] = {};
    const float *w = g.w + panel0 * panel_size;
    for (int tap = 0; tap < g.taps; tap++) {
        const float *a = g.a + m0 * g.a_row + tap * g.a_tap;
        for (int i = 0; i < g.width; i++, w += kNR) {
            vf wv[NP][kNV];
#pragma GCC unroll 4
            for (int p = 0; p < NP; p++) {
#pragma GCC unroll 2
                for (int v = 0; v < kNV; v++) wv[p][v] = load(w + p * panel_size + v * kVW);
            }
#pragma GCC unroll 16
            for (int r = 0; r < MR; r++) {
                const vf x = splat(a[r * g.a_row + i]);
#pragma GCC unroll 4
                for (int p = 0; p < NP; p++) {
#pragma GCC unroll 2
                    for (int v = 0; v < kNV; v++) acc[r][p][v] += x * wv[p][v];
                }
            }
        }
    }
    for (int p = 0; p < NP; p++) {
        const int n0 = (panel0 + p) * kNR;
        const int n = g.n - n0 < kNR ? g.n - n0 : kNR;
        for (int r = 0; r < MR; r++) {
            float *c = g.c + (m0 + r) * g.c_row + n0;
            float out[kNR];
            for (int v = 0; v < kNV; v++) store(out + v * kVW, acc[r][p][v]);
            for (int j = 0; j < n; j++) {
                const float x = out[j] + (g.bias ? g.bias[n0 + j] : 0.0f);
                c[j] = g.accumulate ? c[j] + x : x;
            }
        }
    }
}

// Few rows leave too few independent sums to hide the latency of a multiply-add: take several
// panels at once instead.
template <int MR>
void rows(const GemmArgs &g, int m0, int panel0, int panel1) {
    constexpr int kPanels = MR == 1 ? 4 : MR <= 3 ? 2 : 1;
    int p = panel0;
    for (; p + kPanels <= panel1; p += kPanels) tile<MR, kPanels>(g, m0, p);
    for (; p < panel1; p++) tile<MR, 1>(g, m0, p);
}

template <int MR>
void last_rows(const GemmArgs &g, int m0, int left, int panel0, int panel1) {
    if constexpr (MR > 0) {
        if (left == MR) {
            rows<MR>(g, m0, panel0, panel1);
        } else {
            last_rows<MR - 1>(g, m0, left, panel0, panel1);
        }
    }
}

void gemm(const GemmArgs &g) {
    // A block of rows stays in the second-level cache while all panels pass over it.
    constexpr ptrdiff_t kBlockFloats = 32768;
    const int panels = (g.n + kNR - 1) / kNR;
    int block = static_cast<int>(kBlockFloats / (g.width > 0 ? g.width : 1)) / KZ_MR * KZ_MR;
    if (block < 8 * KZ_MR) block = 8 * KZ_MR;
    for (int b = 0; b < g.m; b += block) {
        const int end = b + block < g.m ? b + block : g.m;
        for (int panel = 0; panel < panels; panel += 4) {
            const int panel_end = panel + 4 < panels ? panel + 4 : panels;
            int m = b;
            for (; m + KZ_MR <= end; m += KZ_MR) rows<KZ_MR>(g, m, panel, panel_end);
            last_rows<KZ_MR - 1>(g, m, end - m, panel, panel_end);
        }
    }
}

float dot(const float *x, const float *y, int n) {
    vf a0{}, a1{}, a2{}, a3{};
    int i = 0;
    for (; i + 4 * kVW <= n; i += 4 * kVW) {
        a0 += load(x + i) * load(y + i);
        a1 += load(x + i + kVW) * load(y + i + kVW);
        a2 += load(x + i + 2 * kVW) * load(y + i + 2 * kVW);
        a3 += load(x + i + 3 * kVW) * load(y + i + 3 * kVW);
    }
    for (; i + kVW <= n; i += kVW) a0 += load(x + i) * load(y + i);
    float s = sum((a0 + a1) + (a2 + a3));
    for (; i < n; i++) s += x[i] * y[i];
    return s;
}

void axpy(float *y, const float *x, float scale, int n) {
    int i = 0;
    for (; i + kVW <= n; i += kVW) store(y + i, load(y + i) + load(x + i) * scale);
    for (; i < n; i++) y[i] += scale * x[i];
}

void snake(float *y, const float *x, const float *alpha, const float *beta, int t, int c) {
    for (int j = 0; j < t; j++, x += c, y += c) {
        int i = 0;
        for (; i + kVW <= c; i += kVW) {
            const vf v = load(x + i);
            store(y + i, v + load(beta + i) * sin_squared(load(alpha + i) * v));
        }
        if (i < c) {
            const vf v = load_part(x + i, c - i);
            const vf out =
                v + load_part(beta + i, c - i) * sin_squared(load_part(alpha + i, c - i) * v);
            std::memcpy(y + i, &out, sizeof(float) * (c - i));
        }
    }
}

float exp_sum(float *x, float max, int n) {
    vf total{};
    int i = 0;
    for (; i + kVW <= n; i += kVW) {
        const vf e = vexp(load(x + i) - max);
        store(x + i, e);
        total += e;
    }
    float s = sum(total);
    if (i < n) {
        const vf e = vexp(load_part(x + i, n - i) - max);
        for (int j = 0; i + j < n; j++) {
            x[i + j] = e[j];
            s += e[j];
        }
    }
    return s;
}

void silu_mul(float *gate, const float *up, int n) {
    int i = 0;
    for (; i + kVW <= n; i += kVW) {
        const vf g = load(gate + i);
        store(gate + i, g / (1.0f + vexp(-g)) * load(up + i));
    }
    if (i < n) {
        const vf g = load_part(gate + i, n - i);
        const vf out = g / (1.0f + vexp(-g)) * load_part(up + i, n - i);
        std::memcpy(gate + i, &out, sizeof(float) * (n - i));
    }
}

void rms_norm(float *y, const float *x, const float *w, float eps, int n) {
    const float scale = 1.0f / __builtin_sqrtf(dot(x, x, n) / static_cast<float>(n) + eps);
    int i = 0;
    for (; i + kVW <= n; i += kVW) store(y + i, load(x + i) * scale * load(w + i));
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

}  // namespace

#define KZ_CONCAT_(a, b) a##b
#define KZ_CONCAT(a, b) KZ_CONCAT_(a, b)
#define KZ_STRING_(x) #x
#define KZ_STRING(x) KZ_STRING_(x)

extern const Kernels KZ_CONCAT(kernels_, KZ_ISA);
const Kernels KZ_CONCAT(kernels_, KZ_ISA) = {KZ_STRING(KZ_ISA), kNR,      gemm,    dot, axpy, snake,
                                             exp_sum,           silu_mul, rms_norm};

}  // namespace kz
