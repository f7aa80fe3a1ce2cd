// Causal convolutions over channels-contiguous arrays [time][channels].
// A layer holds weights only; what a stream remembers between calls is passed in.
#pragma once

#include "nn/compute.h"
#include "nn/kernels/minimal_filter.h"
#include "nn/kernels/panels.h"
#include "weights/gguf_file.h"

namespace kz {

struct Snake {
    FloatBuffer alpha, beta;  // [channels], exp() and reciprocal folded

    // y [t][channels] = SnakeBeta of x; y may be x.
    void run(const Compute &c, const float *x, float *y, int t) const;
};

// How a layer is computed.
struct LayerPlan {
    int rows;    // steps a frame has where the layer stands
    bool exact;  // no minimal filters: every output is the plain sum of its products
};

// Left-padded convolution of stride 1: y[t] sees x[t - (taps-1)*dilation .. t].
//
// Where it pays, outputs are computed by a minimal filter in tiles that start with each frame; what
// a tile would see beyond its frame is taken as zero, so a frame's outputs depend on no later frame
// and on no chunking.
struct CausalConv {
    int in = 0, out = 0, taps = 0, dilation = 1;
    bool plain = false;      // one output channel: w is one column, not packed
    MinimalFilter filter;    // none: direct
    std::vector<int> tiles;  // of a frame: first outputs
    int rows = 0;            // steps a frame
    Panels w;                // [taps * in][out], or for each of the filter's points [in][out]
    FloatBuffer column;      // [taps * in]
    FloatBuffer bias;        // [out]

    int context() const { return (taps - 1) * dilation; }  // steps of x that the state holds
    // padded [context + t][in]: the caller writes x behind the first context() rows; the layer
    // fills those from left [context][in] and leaves the new left context there.  t: whole frames.
    // scratch: grows to what the filter's tiles need.
    void run(const Compute &c, float *padded, float *left, float *y, int t,
             FloatBuffer &scratch) const;
    int64_t weight_bytes() const {
        return static_cast<int64_t>(w.bytes() + column.size() * sizeof(float));
    }

  private:
    void run_tiles(const Compute &c, const float *padded, float *y, int frames,
                   FloatBuffer &scratch) const;
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

// Moves the last `rows` rows of padded [rows + t][width] to left.
void keep_context(const float *padded, float *left, int rows, int t, int width);

// Readers: check the shape and convert to the layout above.
CausalConv read_causal_conv(const GgufFile &f, const Kernels &k, const std::string &name, int in,
                            int out, int dilation, LayerPlan plan);

// The weights [in][out][kernel] of a transposed convolution; a kernel has stride .. 2 * stride
// taps.
const ggml_tensor *require_transposed(const GgufFile &f, const std::string &name, int in, int out,
                                      int stride);

// Transposed convolution that drops what reaches beyond t * stride on the right: as a causal one
// whose output step holds `stride` steps, [t][stride * out].  A kernel longer than its stride needs
// the step before: two taps.
CausalConv read_transposed_conv(const GgufFile &f, const Kernels &k, const std::string &name,
                                int in, int out, int stride, LayerPlan plan);

DepthwiseConv read_depthwise_conv(const GgufFile &f, const std::string &name, int channels);

}  // namespace kz
