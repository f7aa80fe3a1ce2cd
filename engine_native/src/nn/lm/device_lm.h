// The language model on a ggml device: plain ggml operations only, keys and values in the device's
// memory.
//
// Graphs are prepared for a power of two of positions and of keys, and kept: a step only sets
// inputs.  What is beyond the positions asked for is padding that nothing reads.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "nn/lm/lm_graph.h"

namespace kz {

class DeviceLm final : public Lm {
  public:
    DeviceLm(const LmConfig &config, const LmGraphWeights &weights, int n_threads);
    DeviceLm(const DeviceLm &) = delete;

    // Gives tensors, which have been added, memory where its graphs want them, and their values.
    static void place(const LmConfig &config, const LmGraphWeights &weights);

    bool forward(std::span<const LmSequence> sequences, int head) override;
    void reserve(KvCache &cache, int positions) override;
    bool shares_passes() const override { return false; }
    bool exact_grouping() const override { return false; }

    // Of the graph of t positions after n_past others.
    Placement placement(int n_past, int t, int head);

  private:
    struct Step;
    struct Slot;
    struct Pool;
    struct Lease;
    Slot &slot(KvCache &cache);
    template <typename F>
    void with_room(F f);
    void grow(Slot &slot, int positions, bool empty);
    Step &step(Slot &slot, int n_past, int t, int head);
    void read(const Step &step, const LmSequence &to) const;
    void set_inputs(const Slot &slot, Step &step, const float *x, int n_past, int n);

    const LmConfig &config_;
    const LmGraphWeights &w_;
    std::shared_ptr<Pool> pool_;  // shared with the streams' caches
    FloatBuffer padded_, mask_;
    std::vector<int32_t> positions_;
    std::vector<int64_t> rows_;
};

}  // namespace kz
