#include "nn/lm/graph_lm.h"

#include <algorithm>

namespace kz {

GraphLm::GraphLm(const LmConfig &config, const GraphWeights &weights, int n_threads)
    : config_(config),
      w_(weights),
      backend_(n_threads),
      rope_(config.block.head_dim, config.block.rope_theta) {
    for (int i = 0; i < config.layers; i++) ops_.push_back({this, i});
}

GraphLm::Step &GraphLm::step(int t, int head) {
    constexpr int kKept = 16;  // lengths of decode steps; those of prompts vary without end
    std::unique_ptr<Step> &slot = steps_[{t, head}];
    if (slot) return *slot;
    for (auto it = steps_.begin(); it != steps_.end();) {
        const int other = it->first.first;
        it = other > kKept && other != kMaxPositions && other != t ? steps_.erase(it)
                                                                   : std::next(it);
    }
    auto s = std::make_unique<Step>(static_cast<size_t>(config_.layers) * 20 + 16);
    ggml_context *ctx = s->graph.ctx();
    s->input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, config_.input_width, t);
    ggml_set_input(s->input);
    ggml_tensor *x = s->input;
    if (w_.proj_w) x = ggml_add(ctx, ggml_mul_mat(ctx, w_.proj_w, x), w_.proj_b);
    x = build_layers(s->graph, x);
    // Only the last position is asked for.
    x = ggml_view_2d(ctx, x, x->ne[0], 1, x->nb[1], static_cast<size_t>(t - 1) * x->nb[1]);
    s->hidden = ggml_mul(ctx, ggml_rms_norm(ctx, x, config_.block.eps), w_.output_norm);
    ggml_set_output(s->hidden);
    s->logits = ggml_mul_mat(ctx, w_.heads[static_cast<size_t>(head)], s->hidden);
    ggml_set_output(s->logits);
    s->graph.expand(s->logits);
    s->graph.allocate(backend_);
    slot = std::move(s);
    return *slot;
}

ggml_tensor *GraphLm::build_layers(Graph &graph, ggml_tensor *x) {
    ggml_context *ctx = graph.ctx();
    const auto norm = [&](ggml_tensor *in, ggml_tensor *w) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, in, config_.block.eps), w);
    };
    for (size_t i = 0; i < w_.layers.size(); i++) {
        const GraphLayer &l = w_.layers[i];
        ggml_tensor *h = norm(x, l.attn_norm);
        ggml_tensor *args[] = {ggml_mul_mat(ctx, l.q, h), ggml_mul_mat(ctx, l.k, h),
                               ggml_mul_mat(ctx, l.v, h)};
        ggml_tensor *a = ggml_custom_4d(ctx, GGML_TYPE_F32, config_.block.q_width(), x->ne[1], 1, 1,
                                        args, 3, attention, GGML_N_TASKS_MAX, &ops_[i]);
        x = ggml_add(ctx, x, ggml_mul_mat(ctx, l.out, a));
        h = norm(x, l.ffn_norm);
        h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, l.gate, h), ggml_mul_mat(ctx, l.up, h));
        x = ggml_add(ctx, x, ggml_mul_mat(ctx, l.down, h));
    }
    return x;
}

// src: q [q_width, t], k [kv_width, t], v [kv_width, t].  Threads share out the kv heads.
void GraphLm::attention(ggml_tensor *dst, int ith, int nth, void *data) {
    const auto *op = static_cast<const AttentionOp *>(data);
    const GraphLm &self = *op->self;
    const BlockConfig &b = self.config_.block;
    const GraphLayer &l = self.w_.layers[static_cast<size_t>(op->layer)];
    const AttentionArgs args{&b,
                             self.w_.kernels,
                             l.q_norm.data(),
                             l.k_norm.data(),
                             &self.angles_,
                             self.cache_,
                             op->layer,
                             static_cast<int>(dst->ne[1]),
                             static_cast<const float *>(dst->src[0]->data),
                             static_cast<const float *>(dst->src[1]->data),
                             static_cast<const float *>(dst->src[2]->data),
                             b.q_width(),
                             b.kv_width(),
                             static_cast<float *>(dst->data)};
    for (int group = ith; group < b.kv_heads; group += nth) attend(args, group);
}

bool GraphLm::forward(std::span<const LmSequence> sequences, int head) {
    const auto width = static_cast<size_t>(config_.input_width);
    backend_.set_abort_flag(stop_);
    for (const LmSequence &s : sequences) {
        cache_ = s.cache;
        cache_->reserve(cache_->n_past + s.n);
        for (int done = 0; done < s.n;) {
            const int n = std::min(s.n - done, kMaxPositions);
            Step &step = this->step(n, head);
            angles_.compute(rope_, cache_->n_past, n);
            ggml_backend_tensor_set(step.input, s.inputs + static_cast<size_t>(done) * width, 0,
                                    sizeof(float) * width * static_cast<size_t>(n));
            if (!backend_.compute(step.graph.graph())) return false;
            cache_->n_past += n;
            done += n;
            if (done < s.n) continue;
            if (s.hidden)
                ggml_backend_tensor_get(step.hidden, s.hidden, 0, ggml_nbytes(step.hidden));
            if (s.logits)
                ggml_backend_tensor_get(step.logits, s.logits, 0, ggml_nbytes(step.logits));
        }
    }
    return true;
}

}  // namespace kz
