#include "model/talker.h"

#include <algorithm>

namespace kz {

Talker::Talker(const TalkerWeights &weights, const Kernels &kernels, Backend &backend)
    : w_(weights), backend_(backend), transformer_(weights.config.block, weights.layers, kernels) {}

Talker::Step &Talker::step(int t) {
    std::unique_ptr<Step> &slot = steps_[t];
    if (slot) return *slot;
    // Lengths of prompts vary: keep the decode step and the full batch, rebuild the rest.
    for (auto it = steps_.begin(); it != steps_.end();) {
        it = it->first != 1 && it->first != kMaxBatch && it->first != t ? steps_.erase(it)
                                                                        : std::next(it);
    }
    auto s = std::make_unique<Step>(static_cast<size_t>(w_.config.layers) * 20 + 16);
    ggml_context *ctx = s->graph.ctx();
    s->input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w_.config.block.hidden, t);
    ggml_set_input(s->input);
    ggml_tensor *x = transformer_.build(s->graph, s->input);
    // Only the last position is asked for.
    x = ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], static_cast<size_t>(t - 1) * x->nb[1]);
    s->hidden = ggml_mul(ctx, ggml_rms_norm(ctx, x, w_.config.block.eps), w_.output_norm);
    ggml_set_output(s->hidden);
    s->logits = ggml_mul_mat(ctx, w_.head, s->hidden);
    ggml_set_output(s->logits);
    s->graph.expand(s->logits);
    s->graph.allocate(backend_);
    slot = std::move(s);
    return *slot;
}

bool Talker::forward(TalkerState &state, const float *embeds, int t, float *hidden, float *logits) {
    const auto width = static_cast<size_t>(w_.config.block.hidden);
    state.kv.reserve(state.kv.n_past + t);
    transformer_.bind(state.kv);
    while (t > 0) {
        const int n = std::min(t, kMaxBatch);
        Step &s = step(n);
        ggml_backend_tensor_set(s.input, embeds, 0, sizeof(float) * width * static_cast<size_t>(n));
        if (!backend_.compute(s.graph.graph())) return false;
        state.kv.n_past += n;
        embeds += width * static_cast<size_t>(n);
        t -= n;
        if (t == 0) {
            ggml_backend_tensor_get(s.hidden, hidden, 0, sizeof(float) * width);
            ggml_backend_tensor_get(s.logits, logits, 0,
                                    sizeof(float) * static_cast<size_t>(w_.config.codec_vocab));
        }
    }
    return true;
}

void Talker::embed(int text_id, int codec_id, float *out) {
    std::fill(out, out + w_.config.block.hidden, 0.0f);
    if (text_id >= 0) w_.embd.add_row(text_id, out, scratch_);
    if (codec_id >= 0) w_.embd.add_row(w_.codec_row(codec_id), out, scratch_);
}

}  // namespace kz
