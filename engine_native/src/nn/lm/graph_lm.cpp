#include "nn/lm/graph_lm.h"

#include <algorithm>

namespace kz {

class GraphLm::Builder final : public LmGraphBuilder {
  public:
    Builder(GraphLm &lm, PlacedGraph &graph, int t)
        : LmGraphBuilder(graph, lm.config_, lm.w_, t), lm_(lm) {}

  private:
    ggml_tensor *attention(int layer, ggml_tensor *h) override {
        const LmGraphLayer &l = w_.layers[static_cast<size_t>(layer)];
        ggml_tensor *args[] = {product(l.q, h), product(l.k, h), product(l.v, h)};
        return ggml_custom_4d(ctx_, GGML_TYPE_F32, b_.q_width(), t_, 1, 1, args, 3,
                              GraphLm::attention, GGML_N_TASKS_MAX,
                              &lm_.ops_[static_cast<size_t>(layer)]);
    }
    ggml_tensor *last(ggml_tensor *x) override {
        return ggml_view_2d(ctx_, x, x->ne[0], 1, x->nb[1], static_cast<size_t>(t_ - 1) * x->nb[1]);
    }

    GraphLm &lm_;
};

GraphLm::GraphLm(const LmConfig &config, const LmGraphWeights &weights, const Kernels &kernels,
                 int n_threads)
    : config_(config),
      w_(weights),
      kernels_(kernels),
      backends_(cpu_device(), n_threads),
      rope_(config.block.head_dim, config.block.rope_theta) {
    for (int i = 0; i < config.layers; i++) ops_.push_back({this, i});
}

GraphLm::Step &GraphLm::step(int t, int head) {
    constexpr int kKept = 16;  // lengths of decode steps; those of prompts vary without end
    std::unique_ptr<Step> &kept = steps_[{t, head}];
    if (kept) return *kept;
    for (auto it = steps_.begin(); it != steps_.end();) {
        const int other = it->first.first;
        it = other > kKept && other != kMaxGraphPositions && other != t ? steps_.erase(it)
                                                                        : std::next(it);
    }
    auto made = std::make_unique<Step>(static_cast<size_t>(config_.layers) * 20 + 16);
    made->tensors = Builder(*this, made->graph, t).build(head);
    made->graph.allocate(backends_);
    kept = std::move(made);
    return *kept;
}

// src: q [q_width, t], k [kv_width, t], v [kv_width, t].  Threads share out the kv heads.
void GraphLm::attention(ggml_tensor *dst, int ith, int nth, void *data) {
    const auto *op = static_cast<const AttentionOp *>(data);
    const GraphLm &self = *op->self;
    const BlockConfig &b = self.config_.block;
    const LmGraphLayer &l = self.w_.layers[static_cast<size_t>(op->layer)];
    const auto values = [](const ggml_tensor *t) { return static_cast<const float *>(t->data); };
    const AttentionArgs args{&b,
                             &self.kernels_,
                             values(l.q_norm),
                             values(l.k_norm),
                             &self.angles_,
                             self.cache_,
                             op->layer,
                             static_cast<int>(dst->ne[1]),
                             values(dst->src[0]),
                             values(dst->src[1]),
                             values(dst->src[2]),
                             b.q_width(),
                             b.kv_width(),
                             static_cast<float *>(dst->data)};
    for (int group = ith; group < b.kv_heads; group += nth) attend(args, group);
}

bool GraphLm::forward(std::span<const LmSequence> sequences, int head) {
    const auto width = static_cast<size_t>(config_.input_width);
    backends_.set_stop(stop_);
    for (const LmSequence &s : sequences) {
        cache_ = s.cache;
        cache_->reserve(cache_->n_past + s.n);
        for (int done = 0; done < s.n;) {
            const int n = std::min(s.n - done, kMaxGraphPositions);
            Step &step = this->step(n, head);
            angles_.compute(rope_, cache_->n_past, n);
            upload(step.tensors.input, s.inputs + static_cast<size_t>(done) * width);
            if (!step.graph.compute()) return false;
            cache_->n_past += n;
            done += n;
            if (done < s.n) continue;
            if (s.hidden) download(step.tensors.hidden, s.hidden);
            if (s.logits) download(step.tensors.logits, s.logits);
        }
    }
    return true;
}

}  // namespace kz
