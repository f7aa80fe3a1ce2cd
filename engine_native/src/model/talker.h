// Talker: Qwen3 decoder over sums of text and codec embeddings; its head scores codebook 0 and
// end-of-speech.  Reference: Qwen3TTSTalkerForConditionalGeneration (modeling_qwen3_tts.py).
// The multimodal RoPE of the checkpoint gets one position on all axes here, so it is plain RoPE.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/lm_weights.h"

namespace kz {

// What one stream's talker remembers.
struct TalkerState {
    explicit TalkerState(const TalkerWeights &w) : kv(w.config.layers, w.config.block.kv_width()) {}
    KvCache kv;
};

// Graphs and scratch of one thread.
class Talker {
  public:
    Talker(const TalkerWeights &weights, const Kernels &kernels, Backend &backend);

    // embeds [t][hidden] at the next t positions; hidden [hidden] (after the final norm) and logits
    // [codec_vocab] of the last one.  False when the backend's abort flag stopped it.
    bool forward(TalkerState &state, const float *embeds, int t, float *hidden, float *logits);

    // out [hidden] = text_table[text_id] + codec_table[codec_id]; -1 leaves a side out.
    void embed(int text_id, int codec_id, float *out);

    // Positions computed in one graph; a longer prompt goes in pieces.
    static constexpr int kMaxBatch = 64;

  private:
    struct Step {
        Step(size_t nodes) : graph(nodes) {}
        Graph graph;
        ggml_tensor *input, *hidden, *logits;
    };
    Step &step(int t);

    const TalkerWeights &w_;
    Backend &backend_;
    Transformer transformer_;
    std::map<int, std::unique_ptr<Step>> steps_;  // by number of positions
    FloatBuffer scratch_;
};

}  // namespace kz
