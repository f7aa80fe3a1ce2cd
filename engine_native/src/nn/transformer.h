// Pre-norm decoder layers of the Qwen3 kind, as ggml graphs:
//   x -> RMSNorm -> q, k, v -> per-head RMSNorm of q and k -> RoPE -> causal attention (grouped
//     heads) -> output projection -> + x -> RMSNorm -> SwiGLU -> + x
//
// Norms of heads, RoPE, the write into the KV cache and attention are one custom op.  It reads the
// number of past positions when it runs, so one graph serves every step of every stream.
#pragma once

#include <vector>

#include "nn/kernels.h"
#include "nn/rope.h"
#include "runtime/device.h"
#include "weights/config.h"

namespace kz {

struct LayerWeights {
    ggml_tensor *attn_norm, *q, *k, *v,
        *out;  // [hidden], [hidden, q_width], [hidden, kv_width], .., [q_width, hidden]
    ggml_tensor *ffn_norm, *gate, *up, *down;  // [hidden], [hidden, ffn], .., [ffn, hidden]
    FloatBuffer q_norm, k_norm;                // [head_dim]
};

// Keys and values of one stream, in pages so that growth copies nothing.
class KvCache {
  public:
    static constexpr int kPage = 128;  // positions

    KvCache(int layers, int kv_width)
        : width_(kv_width), k_(static_cast<size_t>(layers)), v_(static_cast<size_t>(layers)) {}
    void reserve(int positions);
    void clear() { n_past = 0; }
    float *k(int layer, int position) { return at(k_, layer, position); }
    float *v(int layer, int position) { return at(v_, layer, position); }

    int n_past = 0;

  private:
    using Pages = std::vector<FloatBuffer>;  // [page][kPage][kv_width]
    float *at(std::vector<Pages> &pages, int layer, int position) {
        return pages[static_cast<size_t>(layer)][static_cast<size_t>(position / kPage)].data() +
               static_cast<size_t>(position % kPage) * static_cast<size_t>(width_);
    }
    int width_;
    std::vector<Pages> k_, v_;
};

// The layers of one network with what their attention ops need at run time.  Not shared between
// threads; the weights are.
class Transformer {
  public:
    Transformer(const BlockConfig &config, const std::vector<LayerWeights> &layers,
                const Kernels &kernels);
    Transformer(const Transformer &) = delete;

    // Appends all layers for x [hidden, t] to the graph; returns [hidden, t].
    ggml_tensor *build(Graph &graph, ggml_tensor *x);
    // What the next compute works on: cache must have room for n_past + t positions.
    void bind(KvCache &cache) { cache_ = &cache; }

  private:
    struct AttentionOp {
        Transformer *self;
        int layer;
    };
    static void attention(ggml_tensor *dst, int ith, int nth, void *op);
    void attend(int layer, int group, const float *q, const float *k, const float *v, float *out,
                int t);

    const BlockConfig &config_;
    const std::vector<LayerWeights> &layers_;
    const Kernels &kernels_;
    Rope rope_;
    std::vector<AttentionOp> ops_;
    KvCache *cache_ = nullptr;
};

}  // namespace kz
