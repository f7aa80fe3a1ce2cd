// A language model of Qwen3 layers: positions in, hidden state and logits of the last one out.
// Three forms give the same results up to rounding: PackedLm (packed_lm.h), on kernels of our own,
// GraphLm (graph_lm.h), as ggml graphs on the processor, for every weight type ggml knows, and
// DeviceLm (device_lm.h), on any device of ggml.
//
//   input (-> projection) -> layers of
//     x -> RMSNorm -> q, k, v -> attention (attention.h) -> output projection -> + x
//       -> RMSNorm -> SwiGLU -> + x
//   -> RMSNorm -> hidden -> one of several heads -> logits
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "nn/lm/kv_cache.h"
#include "weights/config.h"

namespace kz {

struct LmConfig {
    BlockConfig block;
    int layers = 0;
    int input_width = 0;  // equal to block.hidden without a projection
    int head_size = 0;    // logits of a head
};

// Consecutive positions of one stream.
struct LmSequence {
    KvCache *cache;       // grows by n positions
    const float *inputs;  // [n][input_width]
    int n;
    float *hidden;  // [hidden] of the last position; nullptr: neither it nor logits are wanted
    float *logits;  // [head_size] of the last position; nullptr: not wanted
};

class Lm {
  public:
    virtual ~Lm() = default;
    // All sequences advance.  False when *stop was seen: caches are then of no more use.
    virtual bool forward(std::span<const LmSequence> sequences, int head) = 0;
    // Makes room, so that a failure to do so is that of one stream.
    virtual void reserve(KvCache &cache, int positions) { cache.reserve(positions); }
    // Whether the sequences of a call are computed together.  If not, calling for one at a time is
    // as fast, and a failure is that of one.
    virtual bool shares_passes() const = 0;
    // Whether positions give the same bits however they are grouped into calls.
    virtual bool exact_grouping() const = 0;

    // Looked at between layers; nullptr: never.
    void set_stop(const std::atomic<bool> *stop) { stop_ = stop; }

  protected:
    bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }
    const std::atomic<bool> *stop_ = nullptr;
};

}  // namespace kz
