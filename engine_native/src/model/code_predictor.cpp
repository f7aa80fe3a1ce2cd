#include "model/code_predictor.h"

#include <algorithm>
#include <cstring>

namespace kz {

CodePredictor::CodePredictor(const CodePredictorWeights &weights, const Kernels &kernels,
                             Backend &backend)
    : w_(weights),
      backend_(backend),
      transformer_(weights.config.block, weights.layers, kernels),
      kv_(weights.config.layers, weights.config.block.kv_width()) {
    const auto steps = static_cast<size_t>(w_.config.n_steps);
    kv_.reserve(w_.config.n_steps + 1);
    transformer_.bind(kv_);
    oracle_.resize(steps);
    for (size_t g = 0; g < steps; g++)
        cached_.push_back(build(g == 0 ? 2 : 1, static_cast<int>(g)));
    inputs_.resize((steps + 1) * static_cast<size_t>(w_.config.input_width));
    logits_.resize(static_cast<size_t>(w_.config.codebook_size));
}

std::unique_ptr<CodePredictor::Pass> CodePredictor::build(int positions, int head) {
    auto pass = std::make_unique<Pass>(static_cast<size_t>(w_.config.layers) * 20 + 16);
    ggml_context *ctx = pass->graph.ctx();
    pass->input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w_.config.input_width, positions);
    ggml_set_input(pass->input);
    ggml_tensor *x = pass->input;
    if (w_.proj_w) x = ggml_add(ctx, ggml_mul_mat(ctx, w_.proj_w, x), w_.proj_b);
    x = transformer_.build(pass->graph, x);
    x = ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], static_cast<size_t>(positions - 1) * x->nb[1]);
    x = ggml_mul(ctx, ggml_rms_norm(ctx, x, w_.config.block.eps), w_.output_norm);
    pass->logits = ggml_mul_mat(ctx, w_.heads[static_cast<size_t>(head)], x);
    ggml_set_output(pass->logits);
    pass->graph.expand(pass->logits);
    pass->graph.allocate(backend_);
    return pass;
}

bool CodePredictor::compute(Pass &pass, const float *inputs, size_t n_floats) {
    ggml_backend_tensor_set(pass.input, inputs, 0, n_floats * sizeof(float));
    if (!backend_.compute(pass.graph.graph())) return false;
    kv_.n_past += static_cast<int>(pass.input->ne[1]);
    ggml_backend_tensor_get(pass.logits, logits_.data(), 0, logits_.size() * sizeof(float));
    return true;
}

bool CodePredictor::run(const float *hidden, const float *code0_embed, const Choose &choose,
                        int32_t *codes, bool recompute) {
    const auto width = static_cast<size_t>(w_.config.input_width);
    std::memcpy(inputs_.data(), hidden, sizeof(float) * width);
    std::memcpy(inputs_.data() + width, code0_embed, sizeof(float) * width);
    kv_.clear();
    for (int g = 0; g < w_.config.n_steps; g++) {
        const auto index = static_cast<size_t>(g);
        float *newest = inputs_.data() + (index + 1) * width;
        if (g > 0) {
            std::fill(newest, newest + width, 0.0f);
            w_.embd.add_row(w_.row(g - 1, codes[g - 1]), newest, scratch_);
        }
        bool done;
        if (recompute) {
            if (!oracle_[index]) oracle_[index] = build(g + 2, g);
            kv_.clear();
            done = compute(*oracle_[index], inputs_.data(), (index + 2) * width);
        } else {
            done = compute(*cached_[index], g == 0 ? inputs_.data() : newest,
                           (g == 0 ? 2 : 1) * width);
        }
        if (!done) return false;
        codes[g] = choose(g, logits_.data());
    }
    return true;
}

void CodePredictor::add_embeddings(const int32_t *codes, float *out) {
    for (int g = 0; g < w_.config.n_steps; g++) w_.embd.add_row(w_.row(g, codes[g]), out, scratch_);
}

}  // namespace kz
