// The plain twin of every kernel: one value at a time, library functions, double sums.
#include <cmath>

#include "nn/kernels.h"

namespace kz {
namespace {

void gemm(const GemmArgs &g) {
    const ptrdiff_t k = static_cast<ptrdiff_t>(g.taps) * g.width;
    for (int m = 0; m < g.m; m++) {
        for (int n = 0; n < g.n; n++) {
            double s = 0;
            for (int tap = 0; tap < g.taps; tap++) {
                const float *a = g.a + m * g.a_row + tap * g.a_tap;
                const float *w = g.w + n * k + static_cast<ptrdiff_t>(tap) * g.width;
                for (int i = 0; i < g.width; i++) s += static_cast<double>(a[i]) * w[i];
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

void axpy(float *y, const float *x, float scale, int n) {
    for (int i = 0; i < n; i++) y[i] += scale * x[i];
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

}  // namespace

extern const Kernels kernels_scalar;
const Kernels kernels_scalar = {"scalar", 1, gemm, dot, axpy, snake, exp_sum, silu_mul, rms_norm};

}  // namespace kz
