// Linear layers over arrays [rows][values].
#pragma once

#include "nn/compute.h"
#include "nn/kernels/panels.h"
#include "weights/gguf_file.h"

namespace kz {

// y [t][out] = x [t][in] W + b
struct Linear {
    int in = 0, out = 0;
    Panels w;
    FloatBuffer bias;  // [out] or empty

    // x_row: values between rows of x; 0: in.
    void run(const Compute &c, const float *x, float *y, int t, bool accumulate = false,
             ptrdiff_t x_row = 0) const;
};

// A matrix of a file that becomes part of a Linear: [in][out].
struct MatrixPart {
    std::string name;
    int in, out;
    int row = 0, column = 0;  // where it goes
};

// Readers: check the shapes and convert to the layout above.  rows: how many of x a call has.
Linear read_linear(const GgufFile &f, const Kernels &k, const std::string &weight,
                   const std::string &bias, int in, int out, int rows);
// Several matrices in one product of in inputs and out outputs; together they must fill it.
Linear read_joined(const GgufFile &f, const Kernels &k, int in, int out,
                   const std::vector<MatrixPart> &parts, int rows);

}  // namespace kz
