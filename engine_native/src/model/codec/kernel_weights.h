// The decoder's weights, packed for kernels of our own.
#pragma once

#include "model/codec/codec_layers.h"
#include "nn/conv/convolution.h"

namespace kz {

struct KernelForm {
    using Vector = FloatBuffer;
    using Linear = kz::Linear;
    using Joined = kz::Linear;  // one matrix
    using Conv = CausalConv;
    using Depthwise = DepthwiseConv;
    using Snake = kz::Snake;
    struct Window {};  // in the state
};

struct KernelWeights : CodecLayers<KernelForm> {
    int64_t bytes = 0;
};

// exact: direct products only, the oracle of the minimal filters.
KernelWeights load_kernel_weights(const GgufFile &file, const Kernels &kernels, bool exact);

}  // namespace kz
