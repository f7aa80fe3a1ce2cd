// Products of a few rows with a matrix of 8- or 4-bit integers that carries one scale for every 32
// inputs (the values of ggml's q8_0 and q4_0).  Compiled once per instruction set from one source
// (quant_impl.h); "scalar" is the plain twin every other set is tested against.
//
// The rows are rounded to 16 bits with a scale of their own for every 32 values, so what a product
// loses against f32 is what the weights lost when they were quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kz {

constexpr int kQuantBlock = 32;  // inputs that share a scale

// Rows of activations, rounded by the set that multiplies them.
struct QuantRows {
    int16_t *q;      // [rows][n]; with words of 8 bits, each 32 split into high and low bytes
    float *scale;    // [rows][n / 32]
    int32_t *total;  // [rows][n / 32], sums of q or of its low bytes: takes the constant off the
                     // weights again
};

// c[m][n] (+)= sum over i of a[m][i] * w[n][i], for the outputs of panels [panel0, panel1).
struct QuantGemmArgs {
    QuantRows a;
    int m, in;
    const uint8_t *w;  // packed, see QuantLayout
    float *c;
    ptrdiff_t c_row;  // floats between rows
    int n;            // outputs
    int panel0, panel1;
    bool accumulate;  // add to c instead of replacing it
};

// A panel holds `outputs` neighbouring outputs; for each 32 inputs first their scales, then the
// weights as words, 32 bits of them for each output in turn.  Weights are stored plus 128 (plus 8),
// so that masks and shifts unpack them.  With W words in 32 bits, part j of word h is the weight of
// input W * j + h; the next group of words holds the next inputs.
struct QuantLayout {
    int outputs;
    bool half_scales;  // f16, else f32
    int word_bits;     // 16 or 8

    size_t block_bytes(int bits) const {
        return static_cast<size_t>(outputs) *
               ((half_scales ? 2u : 4u) + static_cast<size_t>(kQuantBlock * bits / 8));
    }
    size_t panel_bytes(int bits, int in) const {
        return block_bytes(bits) * static_cast<size_t>(in / kQuantBlock);
    }
    int panels(int n) const { return (n + outputs - 1) / outputs; }
};

struct QuantKernels {
    const char *name;
    QuantLayout layout;
    // x [n] -> one row; n is a multiple of 32.
    void (*round_row)(const float *x, int n, int16_t *q, float *scale, int32_t *total);
    void (*gemm8)(const QuantGemmArgs &args);
    void (*gemm4)(const QuantGemmArgs &args);
};

// The best set this processor runs and that computes correctly here, or the one named; throws
// KZ_ERR_ARGUMENT for an unknown or unsupported name and lists what there is.
const QuantKernels &quant_kernels(const char *name = nullptr);
std::vector<std::string> quant_kernel_names();

// Whether a set agrees with the scalar twin on a small problem: takes well under a millisecond.
bool computes_correctly(const QuantKernels &set);

// rows: ggml's q8_0 or q4_0 blocks [n][in / 32] -> packed panels, filled up with zeros.
// out: panels(n) * panel_bytes(bits, in).
void pack_quant(const QuantLayout &layout, int bits, const uint8_t *rows, int in, int n,
                uint8_t *out);

}  // namespace kz
