// The one body of the vector kernels.  The including file defines
//   KZ_ISA   a name, KZ_VW  floats per vector, KZ_MR  rows of a register tile
// and is compiled for that instruction set.  A tile is KZ_MR rows by two vectors.
//
// Every output of gemm is one chain of multiply-adds in the order of k, whatever the tile it falls
// in: results do not depend on how rows are grouped, which is what makes chunked decoding equal
// to decoding at once bit by bit.

#include <cstring>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "nn/kernels/float_kernels.h"
#include "nn/kernels/isa_macros.h"

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

template <typename To, typename From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// Weights are addressed by their index: w + i values.
template <WeightType T>
struct Weights;

template <>
struct Weights<WeightType::f32> {
    const float *p;
    explicit Weights(const void *w) : p(static_cast<const float *>(w)) {}
    vf load(ptrdiff_t i) const { return kz::load(p + i); }
    float one(ptrdiff_t i) const { return p[i]; }
};

using vh = uint16_t __attribute__((vector_size(KZ_VW * 2)));

inline vi widen_bits(const uint16_t *p) {
    vh h;
    std::memcpy(&h, p, sizeof(h));
    return __builtin_convertvector(h, vi);
}

template <>
struct Weights<WeightType::bf16> {
    const uint16_t *p;
    explicit Weights(const void *w) : p(static_cast<const uint16_t *>(w)) {}
    vf load(ptrdiff_t i) const { return bits<vf>(widen_bits(p + i) << 16); }
    float one(ptrdiff_t i) const { return bits<float>(static_cast<uint32_t>(p[i]) << 16); }
};

template <>
struct Weights<WeightType::f16> {
    const uint16_t *p;
    explicit Weights(const void *w) : p(static_cast<const uint16_t *>(w)) {}
    vf load(ptrdiff_t i) const {
#if defined(__AVX512F__) && KZ_VW == 16
        // The form without a mask draws a warning from GCC 12's own header.
        return bits<vf>(_mm512_maskz_cvtph_ps(
            0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + i))));
#elif defined(__F16C__) && KZ_VW == 8
        return bits<vf>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + i))));
#elif defined(__aarch64__) && KZ_VW == 4
        return bits<vf>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + i))));
#else
        // The exponent's bias is 112 smaller; the factor also normalises subnormal numbers.
        const vi h = widen_bits(p + i);
        const vf magnitude = bits<vf>((h & 0x7fff) << 13) * 0x1p112f;
        return bits<vf>(bits<vi>(magnitude) | ((h & 0x8000) << 16));
#endif
    }
    float one(ptrdiff_t i) const {
        uint16_t part[kVW] = {p[i]};
        return Weights(part).load(0)[0];
    }
};

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
    return e * bits<vf>((__builtin_convertvector(n, vi) + 127) << 23);
}

// erf(x) by Abramowitz and Stegun, 7.1.26; within 5e-7.
inline vf verf(vf x) {
    const vf a = x < 0 ? -x : x;
    const vf t = 1.0f / (1.0f + a * 0.3275911f);
    vf p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const vf e = 1.0f - p * t * vexp(-a * a);
    return x < 0 ? -e : e;
}

// Loads n < kVW values, zero beyond.
inline vf load_part(const float *p, int n) {
    float tmp[kVW] = {};
    std::memcpy(tmp, p, sizeof(float) * n);
    return load(tmp);
}

// Adds bias and, if asked, what c holds, to n values of a row.
// Not inlined, as tile() is not: a copy for each of their uses takes minutes to compile.
[[gnu::noinline]] void finish(const GemmArgs &g, const vf *acc, int row, int n0) {
    float *c = g.c + row * g.c_row + n0;
    const float *bias = g.bias ? g.bias + n0 : nullptr;
    if (n0 + kNR <= g.n) {
        for (int v = 0; v < kNV; v++) {
            vf x = acc[v];
            if (bias) x += load(bias + v * kVW);
            if (g.accumulate) x += load(c + v * kVW);
            store(c + v * kVW, x);
        }
        return;
    }
    float out[kNR];
    for (int v = 0; v < kNV; v++) store(out + v * kVW, acc[v]);
    for (int j = 0; j < g.n - n0; j++) {
        const float x = out[j] + (bias ? bias[j] : 0.0f);
        c[j] = g.accumulate ? c[j] + x : x;
    }
}

template <WeightType T, int MR, int NP>
[[gnu::noinline]] void tile(const GemmArgs &g, int m0, int panel0) {
    const ptrdiff_t panel_size = static_cast<ptrdiff_t>(g.taps) * g.width * kNR;
    vf acc[MR][NP][kNV] = {};
    const Weights<T> w(g.w);
    ptrdiff_t at = panel0 * panel_size;
    for (int tap = 0; tap < g.taps; tap++) {
        const float *a = g.a + m0 * g.a_row + tap * g.a_tap;
        for (int i = 0; i < g.width; i++, at += kNR) {
            vf wv[NP][kNV];
#pragma GCC unroll 4
            for (int p = 0; p < NP; p++) {
#pragma GCC unroll 2
                for (int v = 0; v < kNV; v++) wv[p][v] = w.load(at + p * panel_size + v * kVW);
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
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) {
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            const vf sums[kNV] = {acc[r][p][0], acc[r][p][1]};  // so that acc stays in registers
            finish(g, sums, m0 + r, (panel0 + p) * kNR);
        }
    }
}

// Few rows leave too few independent sums to hide the latency of a multiply-add: take several
// panels at once instead.
template <WeightType T, int MR>
void rows(const GemmArgs &g, int m0, int panel0, int panel1) {
    constexpr int kPanels = MR == 1 ? 4 : MR <= 3 ? 2 : 1;
    int p = panel0;
    for (; p + kPanels <= panel1; p += kPanels) tile<T, MR, kPanels>(g, m0, p);
    for (; p < panel1; p++) tile<T, MR, 1>(g, m0, p);
}

template <WeightType T, int MR>
void last_rows(const GemmArgs &g, int m0, int left, int panel0, int panel1) {
    if constexpr (MR > 0) {
        if (left == MR) {
            rows<T, MR>(g, m0, panel0, panel1);
        } else {
            last_rows<T, MR - 1>(g, m0, left, panel0, panel1);
        }
    }
}

template <WeightType T>
void typed_gemm(const GemmArgs &g) {
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
            for (; m + KZ_MR <= end; m += KZ_MR) rows<T, KZ_MR>(g, m, panel, panel_end);
            last_rows<T, KZ_MR - 1>(g, m, end - m, panel, panel_end);
        }
    }
}

void gemm(const GemmArgs &g) {
    switch (g.type) {
        case WeightType::f32:
            return typed_gemm<WeightType::f32>(g);
        case WeightType::f16:
            return typed_gemm<WeightType::f16>(g);
        case WeightType::bf16:
            return typed_gemm<WeightType::bf16>(g);
    }
}

template <WeightType T>
void typed_widen(float *y, const void *x, int n) {
    const Weights<T> w(x);
    int i = 0;
    for (; i + kVW <= n; i += kVW) store(y + i, w.load(i));
    for (; i < n; i++) y[i] = w.one(i);
}

void widen(float *y, const void *x, WeightType type, int n) {
    switch (type) {
        case WeightType::f32:
            return typed_widen<WeightType::f32>(y, x, n);
        case WeightType::f16:
            return typed_widen<WeightType::f16>(y, x, n);
        case WeightType::bf16:
            return typed_widen<WeightType::bf16>(y, x, n);
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

void mul_add(float *y, const float *x, const float *scale, int n) {
    int i = 0;
    for (; i + kVW <= n; i += kVW) store(y + i, load(y + i) + load(x + i) * load(scale + i));
    for (; i < n; i++) y[i] += x[i] * scale[i];
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

void layer_norm(float *y, const float *x, const float *w, const float *b, float eps, int n) {
    const auto count = static_cast<float>(n);
    vf total{};
    int i = 0;
    for (; i + kVW <= n; i += kVW) total += load(x + i);
    float mean = sum(total);
    for (; i < n; i++) mean += x[i];
    mean /= count;
    vf squares{};
    for (i = 0; i + kVW <= n; i += kVW) {
        const vf d = load(x + i) - mean;
        squares += d * d;
    }
    float square = sum(squares);
    for (; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / __builtin_sqrtf(square / count + eps);
    for (i = 0; i + kVW <= n; i += kVW)
        store(y + i, (load(x + i) - mean) * scale * load(w + i) + load(b + i));
    for (; i < n; i++) y[i] = (x[i] - mean) * scale * w[i] + b[i];
}

void gelu(float *x, int n) {
    const auto f = [](vf v) { return 0.5f * v * (1.0f + verf(v * 0.70710678118654752f)); };
    int i = 0;
    for (; i + kVW <= n; i += kVW) store(x + i, f(load(x + i)));
    if (i < n) {
        const vf out = f(load_part(x + i, n - i));
        std::memcpy(x + i, &out, sizeof(float) * (n - i));
    }
}

// Channels i .. i + n - 1 of a tile; n = kVW, or fewer at the end of a row.
template <int K>
inline void input_step(const MinimalFilter &f, const float *const *rows, float *v, ptrdiff_t plane,
                       int i, int n) {
    constexpr int kPoints = 2 * K + 2;
    const auto put = [&](int point, vf x) {
        if (n == kVW) {
            store(v + point * plane + i, x);
        } else {
            std::memcpy(v + point * plane + i, &x, sizeof(float) * n);
        }
    };
    vf d[kPoints];
#pragma GCC unroll 12
    for (int j = 0; j < kPoints; j++)
        d[j] = n == kVW ? load(rows[j] + i) : load_part(rows[j] + i, n);
    vf zero = d[0] * f.q[0], infinity = d[1] * f.q[0];
#pragma GCC unroll 6
    for (int j = 1; j <= K; j++) {
        zero += d[2 * j] * f.q[j];
        infinity += d[2 * j + 1] * f.q[j];
    }
    put(0, zero);
    put(kPoints - 1, infinity);
#pragma GCC unroll 5
    for (int k = 0; k < K; k++) {
        vf even = d[2] * f.c[k][0], odd = d[1] * f.c[k][0];
#pragma GCC unroll 5
        for (int j = 1; j < K; j++) {
            even += d[2 * j + 2] * f.c[k][j];
            odd += d[2 * j + 1] * f.c[k][j];
        }
        put(1 + 2 * k, even + odd * f.point[k]);
        put(2 + 2 * k, even - odd * f.point[k]);
    }
}

template <int K>
void typed_filter_input(const MinimalFilter &f, const float *const *rows, float *v, ptrdiff_t plane,
                        int c) {
    int i = 0;
    for (; i + kVW <= c; i += kVW) input_step<K>(f, rows, v, plane, i, kVW);
    if (i < c) input_step<K>(f, rows, v, plane, i, c - i);
}

void filter_input(const MinimalFilter &f, const float *const *rows, float *v, ptrdiff_t plane,
                  int c) {
    switch (f.pairs) {
        case 1:
            return typed_filter_input<1>(f, rows, v, plane, c);
        case 2:
            return typed_filter_input<2>(f, rows, v, plane, c);
        case 3:
            return typed_filter_input<3>(f, rows, v, plane, c);
        case 4:
            return typed_filter_input<4>(f, rows, v, plane, c);
        case 5:
            return typed_filter_input<5>(f, rows, v, plane, c);
    }
}

template <int K>
inline void output_step(const MinimalFilter &f, const float *u, ptrdiff_t plane, const float *bias,
                        float *const *rows, int i, int n) {
    const auto get = [&](const float *p) { return n == kVW ? load(p + i) : load_part(p + i, n); };
    vf even[K], odd[K];
#pragma GCC unroll 5
    for (int k = 0; k < K; k++) {
        const vf plus = get(u + (1 + 2 * k) * plane), minus = get(u + (2 + 2 * k) * plane);
        even[k] = plus + minus;
        odd[k] = plus - minus;
    }
    const vf b = get(bias);
    for (int j = 0; j < f.outputs; j++) {
        if (!rows[j]) continue;
        vf y = b;
        if (j == 0) y += get(u);
        if (j == f.outputs - 1) y += get(u + (2 * K + 1) * plane);
#pragma GCC unroll 5
        for (int k = 0; k < K; k++) y += (j % 2 ? odd[k] : even[k]) * f.power[k][j];
        if (n == kVW) {
            store(rows[j] + i, y);
        } else {
            std::memcpy(rows[j] + i, &y, sizeof(float) * n);
        }
    }
}

template <int K>
void typed_filter_output(const MinimalFilter &f, const float *u, ptrdiff_t plane, const float *bias,
                         float *const *rows, int c) {
    int i = 0;
    for (; i + kVW <= c; i += kVW) output_step<K>(f, u, plane, bias, rows, i, kVW);
    if (i < c) output_step<K>(f, u, plane, bias, rows, i, c - i);
}

void filter_output(const MinimalFilter &f, const float *u, ptrdiff_t plane, const float *bias,
                   float *const *rows, int c) {
    switch (f.pairs) {
        case 1:
            return typed_filter_output<1>(f, u, plane, bias, rows, c);
        case 2:
            return typed_filter_output<2>(f, u, plane, bias, rows, c);
        case 3:
            return typed_filter_output<3>(f, u, plane, bias, rows, c);
        case 4:
            return typed_filter_output<4>(f, u, plane, bias, rows, c);
        case 5:
            return typed_filter_output<5>(f, u, plane, bias, rows, c);
    }
}

}  // namespace

extern const Kernels KZ_CONCAT(kernels_, KZ_ISA);
const Kernels KZ_CONCAT(kernels_, KZ_ISA) = {
    KZ_STRING(KZ_ISA), kNR,      gemm,     dot,        widen, axpy,         mul_add,      snake,
    exp_sum,           silu_mul, rms_norm, layer_norm, gelu,  filter_input, filter_output};

}  // namespace kz
