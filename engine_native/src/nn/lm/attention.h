// Causal attention of the Qwen3 kind over a KV cache: RMSNorm of every head of q and k, RoPE, the
// write into the cache, grouped heads.
#pragma once

#include "nn/kernels/float_kernels.h"
#include "nn/lm/kv_cache.h"
#include "nn/rope.h"
#include "weights/config.h"

namespace kz {

struct AttentionArgs {
    const BlockConfig *config;
    const Kernels *kernels;
    const float *q_norm, *k_norm;  // [head_dim]
    const RopeAngles *angles;
    KvCache *cache;  // has room for n_past + t positions; n_past is not yet moved on
    int layer, t;
    const float *q, *k, *v;   // row i at q + i * q_row ...: [q_width], [kv_width], [kv_width]
    ptrdiff_t q_row, kv_row;  // floats between rows
    float *out;               // [t][q_width]
};

// The query heads that share kv head `group`.  Groups are independent: each writes the cache rows
// that it alone reads.
void attend(const AttentionArgs &args, int group);

}  // namespace kz
