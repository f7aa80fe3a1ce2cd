#include "nn/lm/attention.h"

#include <cmath>

namespace kz {

void RopeAngles::compute(const Rope &rope, int n_past, int t) {
    half_ = rope.half();
    at_least(values_, at(2 * t));
    for (int i = 0; i < t; i++)
        rope.angles(n_past + i, values_.data() + at(2 * i), values_.data() + at(2 * i + 1));
}

void attend(const AttentionArgs &g, int group) {
    const BlockConfig &c = *g.config;
    const Kernels &kernels = *g.kernels;
    const int dim = c.head_dim, per_group = c.heads / c.kv_heads, half = dim / 2;
    const int n_past = g.cache->n_past, column = group * dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    thread_local FloatBuffer scratch;
    float *query = at_least(scratch, static_cast<size_t>(dim + n_past + g.t));
    float *scores = query + dim;

    for (int i = 0; i < g.t; i++) {
        float *key = g.cache->k(g.layer, n_past + i) + column;
        kernels.rms_norm(key, g.k + i * g.kv_row + column, g.k_norm, c.eps, dim);
        Rope::rotate(key, g.angles->cosine(i), g.angles->sine(i), half);
        std::copy_n(g.v + i * g.kv_row + column, dim, g.cache->v(g.layer, n_past + i) + column);
    }
    for (int i = 0; i < g.t; i++) {
        const int n = n_past + i + 1;
        for (int head = group * per_group; head < (group + 1) * per_group; head++) {
            kernels.rms_norm(query, g.q + i * g.q_row + head * dim, g.q_norm, c.eps, dim);
            Rope::rotate(query, g.angles->cosine(i), g.angles->sine(i), half);
            float max = -INFINITY;
            for (int p = 0; p < n; p++) {
                scores[p] = scale * kernels.dot(query, g.cache->k(g.layer, p) + column, dim);
                max = std::max(max, scores[p]);
            }
            const float inverse = 1.0f / kernels.exp_sum(scores, max, n);
            float *out = g.out + static_cast<ptrdiff_t>(i) * c.q_width() + head * dim;
            std::fill(out, out + dim, 0.0f);
            for (int p = 0; p < n; p++)
                kernels.axpy(out, g.cache->v(g.layer, p) + column, scores[p] * inverse, dim);
        }
    }
}

}  // namespace kz
