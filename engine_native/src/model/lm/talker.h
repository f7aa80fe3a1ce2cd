// Talker: Qwen3 decoder over sums of text and codec embeddings; its head scores codebook 0 and
// end-of-speech.  Reference: Qwen3TTSTalkerForConditionalGeneration (modeling_qwen3_tts.py).
// The multimodal RoPE of the checkpoint gets one position on all axes here, so it is plain RoPE.
#pragma once

#include <memory>
#include <span>

#include "model/lm/lm_weights.h"

namespace kz {

// What one stream's talker remembers.
struct TalkerState {
    explicit TalkerState(const TalkerWeights &w) : kv(w.config.layers, w.config.block.kv_width()) {}
    KvCache kv;
};

// Scratch of one thread.
class Talker {
  public:
    Talker(const TalkerWeights &weights, Team &team, int n_threads);

    // Inputs [n][hidden]; logits [codec_vocab].  False when *stop was seen.
    bool forward(std::span<const LmSequence> sequences) { return lm_->forward(sequences, 0); }

    // out [hidden] = text_table[text_id] + codec_table[codec_id]; -1 leaves a side out.
    void embed(int text_id, int codec_id, float *out);

    Lm &lm() { return *lm_; }

  private:
    const TalkerWeights &w_;
    std::unique_ptr<Lm> lm_;
    FloatBuffer scratch_;
};

}  // namespace kz
