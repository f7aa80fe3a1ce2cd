// Layers of the codec decoder over channels-contiguous arrays [time][channels].
// A layer holds weights only; what a stream remembers between calls is passed in.
#pragma once

#include "nn/kernels.h"
#include "weights/gguf_file.h"

namespace kz {

// y [t][out] = x [t][in] W + b
struct Linear {
    int in = 0, out = 0;
    FloatBuffer w;     // packed panels
    FloatBuffer bias;  // [out] or empty

    void run(const Kernels &k, const float *x, float *y, int t, bool accumulate = false) const;
};

// Left-padded convolution of stride 1: y[t] sees x[t - (taps-1)*dilation .. t].
struct CausalConv {
    int in = 0, out = 0, taps = 0, dilation = 1;
    bool plain = false;  // one output channel: w is [taps * in], not packed
    FloatBuffer w;       // packed panels of [taps * in][out]
    FloatBuffer bias;    // [out]

    int context() const { return (taps - 1) * dilation; }  // steps of x that the state holds
    // padded [context + t][in]: the caller writes x behind the first context() rows; the layer
    // fills those from left [context][in] and leaves the new left context there.
    void run(const Kernels &k, float *padded, float *left, float *y, int t) const;
};

// Transposed convolution that drops what reaches beyond t * stride on the right.
struct TransposedConv {
    int in = 0, out = 0, stride = 0, kernel = 0;
    FloatBuffer w;     // packed panels of [in][kernel * out]
    FloatBuffer bias;  // [out]

    int overlap() const {
        return kernel - stride;
    }  // steps of y that the state holds, bias not yet added
    // x [t][in] -> y [t * stride][out]; tail [overlap][out]; z: scratch [t][kernel * out].
    void run(const Kernels &k, const float *x, float *tail, float *y, int t, float *z) const;
};

// Depthwise causal convolution, one filter per channel.
struct DepthwiseConv {
    int channels = 0, taps = 0;
    FloatBuffer w;     // [taps][channels]
    FloatBuffer bias;  // [channels]

    int context() const { return taps - 1; }
    // As CausalConv::run.
    void run(const float *padded_x, float *y, int t) const;
};

// Moves the last `rows` rows of padded [rows + t][width] to left.
void keep_context(const float *padded, float *left, int rows, int t, int width);

struct Snake {
    FloatBuffer alpha, beta;  // [channels], exp() and reciprocal folded
};

// Readers: check the shape, convert to f32 and to the layout above.
Linear read_linear(const GgufFile &f, const Kernels &k, const std::string &weight,
                   const std::string &bias, int in, int out);
CausalConv read_causal_conv(const GgufFile &f, const Kernels &k, const std::string &name, int in,
                            int out, int dilation);
TransposedConv read_transposed_conv(const GgufFile &f, const Kernels &k, const std::string &name,
                                    int in, int out, int stride);
DepthwiseConv read_depthwise_conv(const GgufFile &f, const std::string &name, int channels);
Snake read_snake(const GgufFile &f, const std::string &name, int channels);
FloatBuffer read_vector(const GgufFile &f, const std::string &name, int n);

}  // namespace kz
