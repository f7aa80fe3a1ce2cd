// Code predictor ("sub-talker"): from the talker's hidden state and codebook 0 the other 15 codes
// of a frame.  Prefill of 2 positions [hidden, embedding of codebook 0], then one position a code;
// pass g uses head g.  Reference: Qwen3TTSTalkerCodePredictorModelForConditionalGeneration.
//
// The cache lives for one frame: nothing of it is carried to the next.  recompute() is the oracle
// that runs every pass over the whole prefix without it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/lm_weights.h"

namespace kz {

class CodePredictor {
  public:
    CodePredictor(const CodePredictorWeights &weights, const Kernels &kernels, Backend &backend);

    // Chooses the code of pass g from logits [codebook_size].
    using Choose = std::function<int(int g, const float *logits)>;

    // hidden [talker hidden], code0_embed [talker hidden] -> codes [n_steps].
    // False when the backend's abort flag stopped it.
    bool run(const float *hidden, const float *code0_embed, const Choose &choose, int32_t *codes,
             bool recompute);

    // out [talker hidden] += embedding of codes [n_steps], all of them
    void add_embeddings(const int32_t *codes, float *out);

  private:
    struct Pass {
        Pass(size_t nodes) : graph(nodes) {}
        Graph graph;
        ggml_tensor *input, *logits;
    };
    std::unique_ptr<Pass> build(int positions, int head);
    bool compute(Pass &pass, const float *inputs, size_t n_floats);

    const CodePredictorWeights &w_;
    Backend &backend_;
    Transformer transformer_;
    KvCache kv_;                                 // of the frame in hand
    std::vector<std::unique_ptr<Pass>> cached_;  // [g]: 2 positions for g = 0, else 1
    std::vector<std::unique_ptr<Pass>> oracle_;  // [g]: g + 2 positions, built on first use
    FloatBuffer inputs_, logits_, scratch_;
};

}  // namespace kz
