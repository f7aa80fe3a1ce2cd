// Layers of the codec decoder over channels-contiguous arrays [time][channels], beside its
// convolutions.  A layer holds weights only; what a stream remembers between calls is passed in.
#pragma once

#include "nn/compute.h"
#include "nn/panels.h"
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

// Depthwise causal convolution, one filter per channel.
struct DepthwiseConv {
    int channels = 0, taps = 0;
    FloatBuffer w;     // [taps][channels]
    FloatBuffer bias;  // [channels]

    int context() const { return taps - 1; }
    // padded_x [context + t][channels], as in CausalConv::run.
    void run(const Kernels &k, const float *padded_x, float *y, int t) const;
};

// A matrix of a file that becomes part of a Linear: [in][out].
struct MatrixPart {
    std::string name;
    int in, out;
    int row = 0, column = 0;  // where it goes
};

// Readers: check the shapes and convert to the layouts above.  rows: steps a frame (LayerPlan).
Linear read_linear(const GgufFile &f, const Kernels &k, const std::string &weight,
                   const std::string &bias, int in, int out, int rows);
// Several matrices in one product of in inputs and out outputs; together they must fill it.
Linear read_joined(const GgufFile &f, const Kernels &k, int in, int out,
                   const std::vector<MatrixPart> &parts, int rows);
DepthwiseConv read_depthwise_conv(const GgufFile &f, const std::string &name, int channels);

}  // namespace kz
