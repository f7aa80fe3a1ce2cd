// A language model as graphs of ggml: its weights, and the nodes that every graph of it has.  What
// computes with it differs in where keys and values are and in the attention over them.
#pragma once

#include <memory>
#include <vector>

#include "nn/lm/lm.h"
#include "runtime/devices.h"

namespace kz {

struct LmGraphLayer {
    ggml_tensor *attn_norm;         // [hidden]
    ggml_tensor *q, *k, *v;         // [hidden, q_width], [hidden, kv_width], [hidden, kv_width]
    ggml_tensor *q_norm, *k_norm;   // [head_dim]
    ggml_tensor *out;               // [q_width, hidden]
    ggml_tensor *ffn_norm;          // [hidden]
    ggml_tensor *gate, *up, *down;  // [hidden, ffn], [hidden, ffn], [ffn, hidden]
};

struct LmGraphWeights {
    ggml_backend_dev_t device = nullptr;  // of a DeviceLm; nullptr: the processor, for a GraphLm
    std::vector<LmGraphLayer> layers;
    ggml_tensor *output_norm = nullptr;                // [hidden]
    ggml_tensor *proj_w = nullptr, *proj_b = nullptr;  // [input_width, hidden], [hidden]
    std::vector<ggml_tensor *> heads;                  // [hidden, head_size]
    std::unique_ptr<PlacedTensors> tensors;

    int64_t bytes() const { return tensors->device_bytes() + tensors->host_bytes(); }
    bool on_processor() const {
        return !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    }
};

struct LmGraphTensors {
    ggml_tensor *input;            // [input_width, t]
    ggml_tensor *hidden, *logits;  // [hidden], [head_size] of one position
};

// Positions computed in one graph; more go in pieces.
inline constexpr int kMaxGraphPositions = 64;

class LmGraphBuilder {
  public:
    LmGraphBuilder(PlacedGraph &graph, const LmConfig &config, const LmGraphWeights &w, int t)
        : g_(graph), ctx_(graph.ctx()), c_(config), b_(config.block), w_(w), t_(t) {}
    virtual ~LmGraphBuilder() = default;

    LmGraphTensors build(int head);

  protected:
    ggml_tensor *product(ggml_tensor *w, ggml_tensor *x);
    ggml_tensor *norm(ggml_tensor *x, ggml_tensor *w);
    // h [hidden, t], normalised -> [q_width, t]
    virtual ggml_tensor *attention(int layer, ggml_tensor *h) = 0;
    // x [hidden, t] -> [hidden] of the position asked for
    virtual ggml_tensor *last(ggml_tensor *x) = 0;

    PlacedGraph &g_;
    ggml_context *ctx_;
    const LmConfig &c_;
    const BlockConfig &b_;
    const LmGraphWeights &w_;
    const int t_;
};

}  // namespace kz
