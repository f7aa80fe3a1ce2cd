// The language model as ggml graphs on the processor, with the keys, values and attention of
// PackedLm: its oracle, and the form for weight types that only ggml multiplies.
//
// Attention is a custom op.  It reads the number of past positions when it runs, so one graph, kept
// for a number of positions, serves every step of every stream.
#pragma once

#include <map>
#include <vector>

#include "nn/lm/attention.h"
#include "nn/lm/lm_graph.h"

namespace kz {

class GraphLm final : public Lm {
  public:
    GraphLm(const LmConfig &config, const LmGraphWeights &weights, const Kernels &kernels,
            int n_threads);
    GraphLm(const GraphLm &) = delete;
    bool forward(std::span<const LmSequence> sequences, int head) override;
    bool shares_passes() const override { return false; }
    bool exact_grouping() const override { return false; }

  private:
    struct Step {
        explicit Step(size_t nodes) : graph(nodes) {}
        PlacedGraph graph;
        LmGraphTensors tensors{};
    };
    struct AttentionOp {
        GraphLm *self;
        int layer;
    };
    class Builder;
    Step &step(int t, int head);
    static void attention(ggml_tensor *dst, int ith, int nth, void *op);

    const LmConfig &config_;
    const LmGraphWeights &w_;
    const Kernels &kernels_;
    DeviceBackends backends_;
    Rope rope_;
    RopeAngles angles_;
    std::vector<AttentionOp> ops_;
    KvCache *cache_ = nullptr;                                    // of the sequence in hand
    std::map<std::pair<int, int>, std::unique_ptr<Step>> steps_;  // by positions and head
};

}  // namespace kz
