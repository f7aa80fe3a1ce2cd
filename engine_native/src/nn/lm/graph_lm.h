// The language model as ggml graphs, prepared once for each number of positions: the oracle of
// PackedLm, and the form for weight types that only ggml multiplies.
//
// Attention is a custom op.  It reads the number of past positions when it runs, so one graph
// serves every step of every stream.
#pragma once

#include <map>
#include <vector>

#include "nn/lm/attention.h"
#include "nn/lm/lm.h"
#include "runtime/backend.h"

namespace kz {

struct GraphLayer {
    ggml_tensor *attn_norm, *q, *k, *v,
        *out;  // [hidden], [hidden, q_width], [hidden, kv_width], .., [q_width, hidden]
    ggml_tensor *ffn_norm, *gate, *up, *down;  // [hidden], [hidden, ffn], .., [ffn, hidden]
    FloatBuffer q_norm, k_norm;                // [head_dim]
};

struct GraphWeights {
    const Kernels *kernels = nullptr;
    std::vector<GraphLayer> layers;
    ggml_tensor *output_norm = nullptr;                // [hidden]
    ggml_tensor *proj_w = nullptr, *proj_b = nullptr;  // [input_width, hidden], [hidden]
    std::vector<ggml_tensor *> heads;                  // [hidden, head_size]
    ContextPtr ctx;
    BufferPtr buffer;

    int64_t bytes() const {
        return static_cast<int64_t>(ggml_backend_buffer_get_size(buffer.get()));
    }
};

class GraphLm final : public Lm {
  public:
    GraphLm(const LmConfig &config, const GraphWeights &weights, int n_threads);
    GraphLm(const GraphLm &) = delete;
    bool forward(std::span<const LmSequence> sequences, int head) override;
    bool shares_passes() const override { return false; }
    bool exact_grouping() const override { return false; }

    // Positions computed in one graph; more go in pieces.
    static constexpr int kMaxPositions = 64;

  private:
    struct Step {
        explicit Step(size_t nodes) : graph(nodes) {}
        Graph graph;
        ggml_tensor *input, *hidden, *logits;
    };
    struct AttentionOp {
        GraphLm *self;
        int layer;
    };
    Step &step(int t, int head);
    ggml_tensor *build_layers(Graph &graph, ggml_tensor *x);
    static void attention(ggml_tensor *dst, int ith, int nth, void *op);

    const LmConfig &config_;
    const GraphWeights &w_;
    Backend backend_;
    Rope rope_;
    RopeAngles angles_;
    std::vector<AttentionOp> ops_;
    KvCache *cache_ = nullptr;                                    // of the sequence in hand
    std::map<std::pair<int, int>, std::unique_ptr<Step>> steps_;  // by positions and head
};

}  // namespace kz
