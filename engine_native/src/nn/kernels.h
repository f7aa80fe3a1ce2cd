// Loops over floats, compiled once per instruction set from one source (kernels_impl.h) and
// chosen once at load.  "scalar" is the plain twin every other set is tested against.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/aligned.h"

namespace kz {

// A matrix product whose left rows are slices of a longer array, so that a dilated causal
// convolution needs no gathered copy:
//   c[m][n] (+)= bias[n] + sum over tap, i of a[m * a_row + tap * a_tap + i] * w[tap * width +
//   i][n]
struct GemmArgs {
    const float *a;
    ptrdiff_t a_row;  // floats between rows
    ptrdiff_t a_tap;  // floats between taps
    int taps;
    int width;          // values per tap
    const float *w;     // packed: [ceil(n / nr)][taps * width][nr]
    const float *bias;  // [n] or nullptr
    float *c;
    ptrdiff_t c_row;  // floats between rows
    int m, n;
    bool accumulate;  // add to c instead of replacing it
};

struct Kernels {
    const char *name;
    int nr;  // columns of a packed panel
    void (*gemm)(const GemmArgs &args);
    float (*dot)(const float *x, const float *y, int n);
    // y += scale * x
    void (*axpy)(float *y, const float *x, float scale, int n);
    // y[t][c] = x[t][c] + beta[c] * sin(alpha[c] * x[t][c])^2      (SnakeBeta with its constants
    // folded)
    void (*snake)(float *y, const float *x, const float *alpha, const float *beta, int t, int c);
    // x[i] = exp(x[i] - max), returns the sum
    float (*exp_sum)(float *x, float max, int n);
    // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
    void (*silu_mul)(float *gate, const float *up, int n);
    // y = x / sqrt(mean(x^2) + eps) * w
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, int n);
};

// The best set this processor runs, or the one named; throws KZ_ERR_ARGUMENT for an unknown or
// unsupported name and lists what there is.
const Kernels &kernels(const char *name = nullptr);
std::vector<std::string> kernel_names();

// w(row, column) of a [k][n] matrix -> packed panels of kernels.nr columns, zero-filled to whole
// panels.  Columns are read one after the other while their panel stays in cache.
template <typename At>
FloatBuffer pack_panels(const Kernels &kernels, int k, int n, At at) {
    const auto nr = static_cast<size_t>(kernels.nr), depth = static_cast<size_t>(k);
    const size_t panels = (static_cast<size_t>(n) + nr - 1) / nr;
    FloatBuffer packed(panels * depth * nr);
    for (size_t p = 0; p < panels; p++) {
        float *panel = packed.data() + p * depth * nr;
        for (size_t j = 0; j < nr; j++) {
            const auto column = static_cast<int>(p * nr + j);
            for (int i = 0; i < k; i++)
                panel[static_cast<size_t>(i) * nr + j] = column < n ? at(i, column) : 0.0f;
        }
    }
    return packed;
}

}  // namespace kz
