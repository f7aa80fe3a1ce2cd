// Code predictor ("sub-talker"): from the talker's hidden state and codebook 0 the other 15 codes
// of a frame.  Prefill of 2 positions [hidden, embedding of codebook 0], then one position a code;
// pass g uses head g.  Reference: Qwen3TTSTalkerCodePredictorModelForConditionalGeneration.
//
// The cache lives for one frame: nothing of it is carried to the next.  Recomputing every pass over
// the whole prefix without it is the oracle.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/lm/lm_weights.h"

namespace kz {

// One frame of one stream.
struct CpFrame {
    const float *hidden;       // [talker hidden]
    const float *code0_embed;  // [talker hidden]
    // Chooses the code of pass g from logits [codebook_size].
    std::function<int(int g, const float *logits)> choose;
    int32_t *codes;          // [n_steps], the result
    bool recompute = false;  // the oracle: every pass over the whole prefix
};

class CodePredictor {
  public:
    CodePredictor(const CodePredictorWeights &weights, Team &team, int n_threads);

    // The passes of all frames go together.  False when *stop was seen.
    bool run(std::span<CpFrame> frames);

    // out [talker hidden] += embedding of codes [n_steps], all of them
    void add_embeddings(const int32_t *codes, float *out);

    Lm &lm() { return *lm_; }

  private:
    // Buffers of one frame.
    struct Slot {
        explicit Slot(const CodePredictorWeights &w);
        KvCache kv;
        FloatBuffer inputs;  // [n_steps + 1][talker hidden]
        FloatBuffer hidden, logits;
    };

    const CodePredictorWeights &w_;
    std::unique_ptr<Lm> lm_;
    std::vector<std::unique_ptr<Slot>> slots_;
    FloatBuffer scratch_;
};

}  // namespace kz
