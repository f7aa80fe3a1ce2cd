// Attention of one query over n keys and values.
#pragma once

#include <algorithm>
#include <cmath>

#include "nn/kernels/float_kernels.h"

namespace kz {

// out [dim] = sum over p of softmax(query . key(p) / sqrt(dim)) value(p), p < n; key(p) and
// value(p) give [dim].  scores [n]: scratch.
template <typename Key, typename Value>
void attend_over(const Kernels &k, const float *query, int dim, int n, const Key &key,
                 const Value &value, float *scores, float *out) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    float max = -INFINITY;
    for (int p = 0; p < n; p++) {
        scores[p] = scale * k.dot(query, key(p), dim);
        max = std::max(max, scores[p]);
    }
    const float inverse = 1.0f / k.exp_sum(scores, max, n);
    std::fill(out, out + dim, 0.0f);
    for (int p = 0; p < n; p++) k.axpy(out, value(p), scores[p] * inverse, dim);
}

}  // namespace kz
