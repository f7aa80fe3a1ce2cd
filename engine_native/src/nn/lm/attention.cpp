#include "nn/lm/attention.h"

#include "nn/attend.h"

namespace kz {

void attend(const AttentionArgs &g, int group) {
    const BlockConfig &c = *g.config;
    const Kernels &kernels = *g.kernels;
    const int dim = c.head_dim, per_group = c.heads / c.kv_heads;
    const int n_past = g.cache->n_past, column = group * dim;
    thread_local FloatBuffer scratch;
    float *query = at_least(scratch, static_cast<size_t>(dim + n_past + g.t));
    float *scores = query + dim;

    for (int i = 0; i < g.t; i++) {
        float *key = g.cache->k(g.layer, n_past + i) + column;
        kernels.rms_norm(key, g.k + i * g.kv_row + column, g.k_norm, c.eps, dim);
        g.angles->rotate(key, i);
        std::copy_n(g.v + i * g.kv_row + column, dim, g.cache->v(g.layer, n_past + i) + column);
    }
    for (int i = 0; i < g.t; i++) {
        const int n = n_past + i + 1;
        for (int head = group * per_group; head < (group + 1) * per_group; head++) {
            kernels.rms_norm(query, g.q + i * g.q_row + head * dim, g.q_norm, c.eps, dim);
            g.angles->rotate(query, i);
            attend_over(
                kernels, query, dim, n, [&](int p) { return g.cache->k(g.layer, p) + column; },
                [&](int p) { return g.cache->v(g.layer, p) + column; }, scores,
                g.out + static_cast<ptrdiff_t>(i) * c.q_width() + head * dim);
        }
    }
}

}  // namespace kz
