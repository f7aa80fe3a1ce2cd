// The plain twin of every kernel: one value at a time, library functions, double sums.
#include <ggml.h>

#include <cmath>
#include <cstring>

#include "nn/kernels/float_kernels.h"

namespace kz {
namespace {

float weight(const void *w, WeightType type, ptrdiff_t i) {
    if (type == WeightType::f32) return static_cast<const float *>(w)[i];
    const uint16_t half = static_cast<const uint16_t *>(w)[i];
    if (type == WeightType::f16) return ggml_fp16_to_fp32(half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

void gemm(const GemmArgs &g) {
    const ptrdiff_t k = static_cast<ptrdiff_t>(g.taps) * g.width;
    for (int m = 0; m < g.m; m++) {
        for (int n = 0; n < g.n; n++) {
            double s = 0;
            for (int tap = 0; tap < g.taps; tap++) {
                const float *a = g.a + m * g.a_row + tap * g.a_tap;
                const ptrdiff_t w = n * k + static_cast<ptrdiff_t>(tap) * g.width;
                for (int i = 0; i < g.width; i++)
                    s += static_cast<double>(a[i]) * weight(g.w, g.type, w + i);
            }
            const float x = static_cast<float>(s) + (g.bias ? g.bias[n] : 0.0f);
            float &c = g.c[m * g.c_row + n];
            c = g.accumulate ? c + x : x;
        }
    }
}

float dot(const float *x, const float *y, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += static_cast<double>(x[i]) * y[i];
    return static_cast<float>(s);
}

void widen(float *y, const void *x, WeightType type, int n) {
    for (int i = 0; i < n; i++) y[i] = weight(x, type, i);
}

void axpy(float *y, const float *x, float scale, int n) {
    for (int i = 0; i < n; i++) y[i] += scale * x[i];
}

void mul_add(float *y, const float *x, const float *scale, int n) {
    for (int i = 0; i < n; i++) y[i] += scale[i] * x[i];
}

void snake(float *y, const float *x, const float *alpha, const float *beta, int t, int c) {
    for (int i = 0; i < t * c; i++) {
        const float s = std::sin(alpha[i % c] * x[i]);
        y[i] = x[i] + beta[i % c] * s * s;
    }
}

float exp_sum(float *x, float max, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i] = std::exp(x[i] - max);
    return static_cast<float>(s);
}

void silu_mul(float *gate, const float *up, int n) {
    for (int i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void rms_norm(float *y, const float *x, const float *w, float eps, int n) {
    const float scale = 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

void layer_norm(float *y, const float *x, const float *w, const float *b, float eps, int n) {
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const double scale = 1.0 / std::sqrt(square / n + static_cast<double>(eps));
    for (int i = 0; i < n; i++) y[i] = static_cast<float>((x[i] - mean) * scale * w[i] + b[i]);
}

void gelu(float *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = static_cast<float>(0.5 * x[i] * (1.0 + std::erf(x[i] * 0.70710678118654752440)));
}

void filter_input(const MinimalFilter &f, const float *const *rows, float *v, ptrdiff_t plane,
                  int c) {
    const int last = f.points() - 1;
    for (int i = 0; i < c; i++) {
        double zero = 0, infinity = 0;
        for (int j = 0; j <= f.pairs; j++) {
            zero += static_cast<double>(f.q[j]) * rows[2 * j][i];
            infinity += static_cast<double>(f.q[j]) * rows[2 * j + 1][i];
        }
        v[i] = static_cast<float>(zero);
        v[last * plane + i] = static_cast<float>(infinity);
        for (int k = 0; k < f.pairs; k++) {
            double even = 0, odd = 0;
            for (int j = 0; j < f.pairs; j++) {
                even += static_cast<double>(f.c[k][j]) * rows[2 * j + 2][i];
                odd += static_cast<double>(f.c[k][j]) * rows[2 * j + 1][i] * f.point[k];
            }
            v[(1 + 2 * k) * plane + i] = static_cast<float>(even + odd);
            v[(2 + 2 * k) * plane + i] = static_cast<float>(even - odd);
        }
    }
}

void filter_output(const MinimalFilter &f, const float *u, ptrdiff_t plane, const float *bias,
                   float *const *rows, int c) {
    for (int j = 0; j < f.outputs; j++) {
        for (int i = 0; i < c && rows[j]; i++) {
            double y = bias[i];
            if (j == 0) y += u[i];
            if (j == f.outputs - 1) y += u[(f.points() - 1) * plane + i];
            for (int k = 0; k < f.pairs; k++) {
                const double plus = u[(1 + 2 * k) * plane + i], minus = u[(2 + 2 * k) * plane + i];
                y += f.power[k][j] * (j % 2 ? plus - minus : plus + minus);
            }
            rows[j][i] = static_cast<float>(y);
        }
    }
}

}  // namespace

extern const Kernels kernels_scalar;
const Kernels kernels_scalar = {"scalar", 1,          gemm,  dot,          widen,
                                axpy,     mul_add,    snake, exp_sum,      silu_mul,
                                rms_norm, layer_norm, gelu,  filter_input, filter_output};

}  // namespace kz
