#include "nn/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kz {

void KvCache::reserve(int positions) {
    const auto pages = static_cast<size_t>((positions + kPage - 1) / kPage);
    for (auto *all : {&k_, &v_}) {
        for (Pages &layer : *all) {
            while (layer.size() < pages)
                layer.emplace_back(static_cast<size_t>(kPage) * static_cast<size_t>(width_));
        }
    }
}

Transformer::Transformer(const BlockConfig &config, const std::vector<LayerWeights> &layers,
                         const Kernels &kernels)
    : config_(config),
      layers_(layers),
      kernels_(kernels),
      rope_(config.head_dim, config.rope_theta) {
    for (size_t i = 0; i < layers.size(); i++) ops_.push_back({this, static_cast<int>(i)});
}

ggml_tensor *Transformer::build(Graph &graph, ggml_tensor *x) {
    ggml_context *ctx = graph.ctx();
    const auto norm = [&](ggml_tensor *in, ggml_tensor *w) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, in, config_.eps), w);
    };
    for (size_t i = 0; i < layers_.size(); i++) {
        const LayerWeights &l = layers_[i];
        ggml_tensor *h = norm(x, l.attn_norm);
        ggml_tensor *args[] = {ggml_mul_mat(ctx, l.q, h), ggml_mul_mat(ctx, l.k, h),
                               ggml_mul_mat(ctx, l.v, h)};
        ggml_tensor *a = ggml_custom_4d(ctx, GGML_TYPE_F32, config_.q_width(), x->ne[1], 1, 1, args,
                                        3, attention, GGML_N_TASKS_MAX, &ops_[i]);
        x = ggml_add(ctx, x, ggml_mul_mat(ctx, l.out, a));
        h = norm(x, l.ffn_norm);
        h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, l.gate, h), ggml_mul_mat(ctx, l.up, h));
        x = ggml_add(ctx, x, ggml_mul_mat(ctx, l.down, h));
    }
    return x;
}

// src: q [q_width, t], k [kv_width, t], v [kv_width, t].  Threads share out the kv heads, and a kv
// head's cache rows are written by the thread that reads them: no barrier is needed.
void Transformer::attention(ggml_tensor *dst, int ith, int nth, void *data) {
    const auto *op = static_cast<const AttentionOp *>(data);
    for (int group = ith; group < op->self->config_.kv_heads; group += nth) {
        op->self->attend(op->layer, group, static_cast<const float *>(dst->src[0]->data),
                         static_cast<const float *>(dst->src[1]->data),
                         static_cast<const float *>(dst->src[2]->data),
                         static_cast<float *>(dst->data), static_cast<int>(dst->ne[1]));
    }
}

void Transformer::attend(int layer, int group, const float *q, const float *k, const float *v,
                         float *out, int t) {
    const LayerWeights &w = layers_[static_cast<size_t>(layer)];
    const int dim = config_.head_dim, per_group = config_.heads / config_.kv_heads,
              half = rope_.half();
    const int n_past = cache_->n_past;
    thread_local FloatBuffer scratch;
    float *cosine = at_least(scratch, static_cast<size_t>(2 * half + dim + n_past + t));
    float *sine = cosine + half;
    float *query = sine + half;
    float *scores = query + dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));

    for (int i = 0; i < t; i++) {
        float *row = cache_->k(layer, n_past + i) + group * dim;
        kernels_.rms_norm(row, k + static_cast<size_t>(i) * config_.kv_width() + group * dim,
                          w.k_norm.data(), config_.eps, dim);
        rope_.angles(n_past + i, cosine, sine);
        Rope::rotate(row, cosine, sine, half);
        std::memcpy(cache_->v(layer, n_past + i) + group * dim,
                    v + static_cast<size_t>(i) * config_.kv_width() + group * dim,
                    sizeof(float) * dim);
    }
    for (int i = 0; i < t; i++) {
        rope_.angles(n_past + i, cosine, sine);
        const int n = n_past + i + 1;
        for (int head = group * per_group; head < (group + 1) * per_group; head++) {
            const size_t offset =
                static_cast<size_t>(i) * config_.q_width() + static_cast<size_t>(head) * dim;
            kernels_.rms_norm(query, q + offset, w.q_norm.data(), config_.eps, dim);
            Rope::rotate(query, cosine, sine, half);
            float max = -INFINITY;
            for (int p = 0; p < n; p++) {
                scores[p] = scale * kernels_.dot(query, cache_->k(layer, p) + group * dim, dim);
                max = std::max(max, scores[p]);
            }
            const float inverse = 1.0f / kernels_.exp_sum(scores, max, n);
            float *o = out + offset;
            std::fill(o, o + dim, 0.0f);
            for (int p = 0; p < n; p++)
                kernels_.axpy(o, cache_->v(layer, p) + group * dim, scores[p] * inverse, dim);
        }
    }
}

}  // namespace kz
