// The decoder's weights as tensors of a ggml device, f32, laid out tap by tap.
#pragma once

#include <memory>
#include <vector>

#include "model/codec/codec_layers.h"
#include "runtime/devices.h"

namespace kz {

// Bounds of max_rows: with fewer a chunk would be split into hundreds of products.
constexpr int kLeastRows = 64, kMostRows = 1 << 30;

// The last rows of a layer's input, kept for the next chunk: [rows][width] in the state.
struct Carry {
    int width = 0, rows = 0;
    size_t offset = 0;  // floats
};

// Steps of x, the context first, times a matrix a tap.  A transposed convolution is one whose
// output step holds `stride` steps.
struct GraphConv {
    std::vector<ggml_tensor *> taps;  // [in, stride * out] each, the oldest step first
    ggml_tensor *bias = nullptr;      // [out]
    int dilation = 1, stride = 1;
    Carry carry;
};

struct GraphLinear {
    ggml_tensor *w = nullptr, *bias = nullptr;  // [in, out], [out] or none
};

struct GraphSnake {
    ggml_tensor *alpha = nullptr, *beta = nullptr;  // exp() and reciprocal folded by the file
};

struct GraphForm {
    using Vector = ggml_tensor *;
    using Linear = GraphLinear;
    using Joined = std::vector<GraphLinear>;  // side by side
    using Conv = GraphConv;
    using Depthwise = GraphConv;  // taps [channels, 1]
    using Snake = GraphSnake;
    struct Window {
        Carry keys, values;
    };
};

struct GraphWeights : CodecLayers<GraphForm> {
    ggml_backend_dev_t device = nullptr;
    int max_rows = 0;  // of a product; 0: any
    size_t state_floats = 0;
    std::unique_ptr<PlacedTensors> tensors;

    int64_t bytes() const {
        return tensors->device_bytes() + tensors->host_bytes() + codebooks.bytes();
    }
    // Frames of the longest graph: fewer where products are split into very many.
    int longest_chunk() const;
    // Gives tensors their memory, as the graphs of one frame and of the longest chunk need it.
    // state: the carries [state_floats].  Throws KZ_ERR_MEMORY naming the device.
    void place(PlacedTensors &placed, ggml_tensor *state, bool weights) const;
};

// Throws KZ_ERR_MEMORY naming the device.
GraphWeights load_graph_weights(const GgufFile &file, const Kernels &kernels,
                                ggml_backend_dev_t device, int max_rows);

}  // namespace kz
