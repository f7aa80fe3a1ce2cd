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

// A [k][n] matrix, column by column, -> packed panels of kernels.nr columns, zero-filled to whole
// panels.  read(column, out) writes the k values of a column.
template <typename Read>
FloatBuffer pack_panels(const Kernels &kernels, int k, int n, Read read) {
    const auto nr = static_cast<size_t>(kernels.nr), depth = static_cast<size_t>(k);
    const size_t panels = (static_cast<size_t>(n) + nr - 1) / nr;
    FloatBuffer packed(panels * depth * nr), column(depth);
    for (size_t i = 0; i < static_cast<size_t>(n); i++) {
        read(static_cast<int>(i), column.data());
        float *out = packed.data() + i / nr * depth * nr + i % nr;
        for (size_t row = 0; row < depth; row++) out[row * nr] = column[row];
    }
    return packed;
}

}  // namespace kz
