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

#include "nn/lm/lm.h"
#include "runtime/devices.h"

namespace kz {

struct DeviceLayer {
    ggml_tensor *attn_norm, *q, *k, *v, *q_norm, *k_norm, *out;
    ggml_tensor *ffn_norm, *gate, *up, *down;
};

struct DeviceLmWeights {
    ggml_backend_dev_t device = nullptr;
    std::vector<DeviceLayer> layers;
    ggml_tensor *output_norm = nullptr;                // [hidden]
    ggml_tensor *proj_w = nullptr, *proj_b = nullptr;  // [input_width, hidden], [hidden]
    std::vector<ggml_tensor *> heads;                  // [hidden, head_size]
    std::unique_ptr<PlacedTensors> tensors;

    int64_t bytes() const { return tensors->device_bytes() + tensors->host_bytes(); }
    // Gives the tensors, which have been added, their memory and values.
    void place(const LmConfig &config);
};

class DeviceLm final : public Lm {
  public:
    DeviceLm(const LmConfig &config, const DeviceLmWeights &weights, int n_threads);
    DeviceLm(const DeviceLm &) = delete;

    bool forward(std::span<const LmSequence> sequences, int head) override;
    void reserve(KvCache &cache, int positions) override;
    bool shares_passes() const override { return false; }
    bool exact_grouping() const override { return false; }

    // Of the graph of t positions after n_past others.
    Placement placement(int n_past, int t, int head);

    // Positions computed in one graph; more go in pieces.
    static constexpr int kMaxPositions = 64;

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
    const DeviceLmWeights &w_;
    std::shared_ptr<Pool> pool_;  // shared with the streams' caches
    FloatBuffer padded_, mask_;
    std::vector<int32_t> positions_;
    std::vector<int64_t> rows_;
};

}  // namespace kz
