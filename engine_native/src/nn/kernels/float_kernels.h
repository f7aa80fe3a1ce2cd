// Loops over floats, compiled once per instruction set from one source (float_impl.h) and
// chosen once at load.  "scalar" is the plain twin every other set is tested against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nn/kernels/minimal_filter.h"
#include "runtime/aligned.h"

namespace kz {

// Weights may be stored in 16 bits: they are widened as they are read, which loses nothing.
enum class WeightType : uint8_t { f32, f16, bf16 };  // f16: finite values only

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
    const void *w;      // packed: [ceil(n / nr)][taps * width][nr]
    WeightType type;    // of w
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
    // y[i] = x[i] as f32
    void (*widen)(float *y, const void *x, WeightType type, int n);
    // y += scale * x
    void (*axpy)(float *y, const float *x, float scale, int n);
    // y += scale[i] * x
    void (*mul_add)(float *y, const float *x, const float *scale, int n);
    // y[t][c] = x[t][c] + beta[c] * sin(alpha[c] * x[t][c])^2      (SnakeBeta with its constants
    // folded)
    void (*snake)(float *y, const float *x, const float *alpha, const float *beta, int t, int c);
    // x[i] = exp(x[i] - max), returns the sum
    float (*exp_sum)(float *x, float max, int n);
    // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
    void (*silu_mul)(float *gate, const float *up, int n);
    // y = x / sqrt(mean(x^2) + eps) * w
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, int n);
    // y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, float eps, int n);
    // x[i] = x[i] * (1 + erf(x[i] / sqrt(2))) / 2      (GELU)
    void (*gelu)(float *x, int n);
    // v[point * plane + i] of the tile rows[0 .. points - 1][i], i < c
    void (*filter_input)(const MinimalFilter &f, const float *const *rows, float *v,
                         ptrdiff_t plane, int c);
    // rows[output][i] of the products u[point * plane + i], plus bias[i]; null rows are left out
    void (*filter_output)(const MinimalFilter &f, const float *u, ptrdiff_t plane,
                          const float *bias, float *const *rows, int c);
};

// The best set this processor runs and that computes correctly here, or the one named; throws
// KZ_ERR_ARGUMENT for an unknown or unsupported name and lists what there is.
const Kernels &kernels(const char *name = nullptr);
std::vector<std::string> kernel_names();

// Whether every kernel of a set agrees with the scalar twin on a small problem: takes less than a
// millisecond.
bool computes_correctly(const Kernels &set);

}  // namespace kz
