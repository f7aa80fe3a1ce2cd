#include "model/codec/graph_build.h"

#include <cmath>

#include "model/codec/decoder.h"

namespace kz {

namespace {

class Builder {
  public:
    Builder(PlacedGraph &graph, const GraphWeights &w, ggml_tensor *state, int frames,
            bool keep_stages)
        : g_(graph),
          ctx_(graph.ctx()),
          w_(w),
          c_(w.config),
          state_(state),
          frames_(frames),
          keep_stages_(keep_stages) {}

    GraphTensors build() {
        inputs();
        ggml_tensor *x =
            ggml_add(ctx_, linear(w_.quant_out[0], r_.first), linear(w_.quant_out[1], r_.rest));
        stage("quant", x);
        x = conv(w_.pre_conv, x);
        stage("preconv", x);
        x = pre_transformer(x);
        stage("pretr", x);
        for (const UpsampleStage<GraphForm> &s : w_.upsample) x = upsample(s, x);
        stage("upsample", x);
        x = conv(w_.entry, x);
        stage("dac.entry", x);
        for (size_t i = 0; i < w_.blocks.size(); i++) {
            x = dac_block(w_.blocks[i], x);
            if (i < std::size(Decoder::kBlockNames)) stage(Decoder::kBlockNames[i], x);
        }
        r_.pcm = conv(w_.post_conv, snake(w_.post_snake, x));
        g_.output(r_.pcm);
        return r_;
    }

  private:
    void inputs() {
        r_.first = g_.input(GGML_TYPE_F32, c_.codebook_dim, frames_);
        r_.rest = g_.input(GGML_TYPE_F32, c_.codebook_dim, frames_);
        r_.positions = g_.input(GGML_TYPE_I32, frames_);
        r_.mask = g_.input(GGML_TYPE_F32, c_.window - 1 + frames_, frames_);
    }

    void stage(const char *name, ggml_tensor *x) {
        if (!keep_stages_) return;
        g_.output(x);
        r_.stages.emplace_back(name, x);
    }

    ggml_tensor *rows(ggml_tensor *x, int64_t first, int64_t n) {
        return ggml_view_2d(ctx_, x, x->ne[0], n, x->nb[1], static_cast<size_t>(first) * x->nb[1]);
    }

    ggml_tensor *product(ggml_tensor *w, ggml_tensor *x) {
        ggml_tensor *y = ggml_mul_mat(ctx_, w, x);
        ggml_prec_set_acc(y, GGML_PREC_F32);
        return y;
    }

    // f(first, n) for all t rows, in pieces of equal size that a device takes; pieces are joined
    // two by two, so that each row is moved a few times only.
    template <typename F>
    ggml_tensor *by_rows(int64_t t, F f) {
        const int64_t most = w_.max_rows > 0 ? w_.max_rows : t;
        const int64_t pieces = (t + most - 1) / most;
        std::vector<ggml_tensor *> parts;
        for (int64_t i = 0; i < pieces; i++) {
            const int64_t first = t * i / pieces;
            parts.push_back(f(first, t * (i + 1) / pieces - first));
        }
        while (parts.size() > 1) {
            std::vector<ggml_tensor *> joined;
            for (size_t i = 0; i + 1 < parts.size(); i += 2)
                joined.push_back(ggml_concat(ctx_, parts[i], parts[i + 1], 1));
            if (parts.size() % 2 == 1) joined.push_back(parts.back());
            parts = std::move(joined);
        }
        return parts[0];
    }

    ggml_tensor *linear(const GraphLinear &l, ggml_tensor *x) {
        ggml_tensor *y = by_rows(x->ne[1], [&](int64_t first, int64_t n) {
            return product(l.w, n == x->ne[1] ? x : rows(x, first, n));
        });
        return l.bias ? ggml_add(ctx_, y, l.bias) : y;
    }

    // What the last chunk left, x behind it; what x leaves goes back into the state.
    ggml_tensor *with_carry(const Carry &c, ggml_tensor *x) {
        if (c.rows == 0) return x;
        ggml_tensor *left =
            ggml_view_2d(ctx_, state_, c.width, c.rows,
                         static_cast<size_t>(c.width) * sizeof(float), c.offset * sizeof(float));
        ggml_tensor *all = ggml_concat(ctx_, left, x, 1);
        g_.expand(ggml_cpy(ctx_, rows(all, x->ne[1], c.rows), left));
        return all;
    }

    ggml_tensor *conv(const GraphConv &c, ggml_tensor *x) {
        ggml_tensor *all = with_carry(c.carry, x);
        ggml_tensor *y = by_rows(x->ne[1], [&](int64_t first, int64_t n) {
            ggml_tensor *sum = nullptr;
            for (size_t tap = 0; tap < c.taps.size(); tap++) {
                const int64_t at = first + static_cast<int64_t>(tap) * c.dilation;
                ggml_tensor *part = product(c.taps[tap], rows(all, at, n));
                sum = sum ? ggml_add(ctx_, sum, part) : part;
            }
            return sum;
        });
        if (c.stride > 1) y = ggml_reshape_2d(ctx_, y, y->ne[0] / c.stride, y->ne[1] * c.stride);
        return ggml_add(ctx_, y, c.bias);
    }

    ggml_tensor *snake(const GraphSnake &s, ggml_tensor *x) {
        ggml_tensor *wave = ggml_sqr(ctx_, ggml_sin(ctx_, ggml_mul(ctx_, x, s.alpha)));
        return ggml_add(ctx_, x, ggml_mul(ctx_, wave, s.beta));
    }

    ggml_tensor *rms_norm(ggml_tensor *x, ggml_tensor *w) {
        return ggml_mul(ctx_, ggml_rms_norm(ctx_, x, c_.block.eps), w);
    }

    ggml_tensor *pre_transformer(ggml_tensor *x) {
        ggml_tensor *h = linear(w_.in_proj, x);
        for (const PreTransformerLayer<GraphForm> &l : w_.layers) {
            ggml_tensor *y = linear(l.out, attention(l, rms_norm(h, l.attn_norm)));
            h = ggml_add(ctx_, h, ggml_mul(ctx_, y, l.attn_scale));
            y = rms_norm(h, l.ffn_norm);
            y = linear(l.down,
                       ggml_swiglu_split(ctx_, linear(l.gate_up[0], y), linear(l.gate_up[1], y)));
            h = ggml_add(ctx_, h, ggml_mul(ctx_, y, l.ffn_scale));
        }
        return linear(w_.out_proj, rms_norm(h, w_.output_norm));
    }

    // x [heads * head_dim, frames], rotated.
    ggml_tensor *rotated(ggml_tensor *x, int heads) {
        const BlockConfig &b = c_.block;
        return ggml_rope_ext(ctx_, ggml_reshape_3d(ctx_, x, b.head_dim, heads, frames_),
                             r_.positions, nullptr, b.head_dim, GGML_ROPE_TYPE_NEOX, 0,
                             b.rope_theta, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    }

    ggml_tensor *attention(const PreTransformerLayer<GraphForm> &l, ggml_tensor *x) {
        const BlockConfig &b = c_.block;
        ggml_tensor *q = rotated(linear(l.qkv[0], x), b.heads);
        ggml_tensor *k = rotated(linear(l.qkv[1], x), b.kv_heads);
        ggml_tensor *keys =
            with_carry(l.window.keys, ggml_reshape_2d(ctx_, k, b.kv_width(), frames_));
        ggml_tensor *values = with_carry(l.window.values, linear(l.qkv[2], x));
        const int64_t n = keys->ne[1];
        // ggml's Vulkan device rounds what is not contiguous to 16 bits.
        keys = ggml_cont(
            ctx_,
            ggml_permute(ctx_, ggml_reshape_3d(ctx_, keys, b.head_dim, b.kv_heads, n), 0, 2, 1, 3));
        q = ggml_cont(ctx_, ggml_permute(ctx_, q, 0, 2, 1, 3));
        values = ggml_cont(ctx_, ggml_transpose(ctx_, values));  // [n, kv_width]
        values = ggml_view_3d(ctx_, values, n, b.head_dim, b.kv_heads, values->nb[1],
                              values->nb[1] * static_cast<size_t>(b.head_dim), 0);
        ggml_tensor *scores = product(keys, q);
        scores = ggml_soft_max_ext(ctx_, scores, r_.mask,
                                   1.0f / std::sqrt(static_cast<float>(b.head_dim)), 0.0f);
        ggml_tensor *out = product(values, scores);
        return ggml_cont_2d(ctx_, ggml_permute(ctx_, out, 0, 2, 1, 3), b.q_width(), frames_);
    }

    ggml_tensor *upsample(const UpsampleStage<GraphForm> &s, ggml_tensor *x) {
        x = conv(s.conv, x);
        ggml_tensor *all = with_carry(s.dwconv.carry, x), *y = nullptr;
        for (size_t tap = 0; tap < s.dwconv.taps.size(); tap++) {
            ggml_tensor *part =
                ggml_mul(ctx_, rows(all, static_cast<int64_t>(tap), x->ne[1]), s.dwconv.taps[tap]);
            y = y ? ggml_add(ctx_, y, part) : part;
        }
        y = ggml_norm(ctx_, ggml_add(ctx_, y, s.dwconv.bias), 1e-6f);
        y = ggml_add(ctx_, ggml_mul(ctx_, y, s.norm_w), s.norm_b);
        y = linear(s.pw2, ggml_gelu_erf(ctx_, linear(s.pw1, y)));
        return ggml_add(ctx_, x, ggml_mul(ctx_, y, s.gamma));
    }

    ggml_tensor *dac_block(const DacBlock<GraphForm> &b, ggml_tensor *x) {
        x = conv(b.conv, snake(b.snake, x));
        for (const ResidualUnit<GraphForm> &u : b.res) {
            ggml_tensor *y = conv(u.conv1, snake(u.act1, x));
            x = ggml_add(ctx_, x, linear(u.conv2, snake(u.act2, y)));
        }
        return x;
    }

    PlacedGraph &g_;
    ggml_context *ctx_;
    const GraphWeights &w_;
    const CodecConfig &c_;
    ggml_tensor *state_;
    const int frames_;
    const bool keep_stages_;
    GraphTensors r_{};
};

}  // namespace

size_t graph_nodes(const GraphWeights &w, int frames) {
    const auto pieces = [&w](int64_t rows) {
        return static_cast<size_t>(w.max_rows > 0 ? (rows + w.max_rows - 1) / w.max_rows : 1);
    };
    // A piece of a convolution: a product, its slice and a sum for each of at most 8 taps, and a
    // junction.  A piece of a linear layer: a product, its slice and a junction.
    constexpr size_t kConv = 25, kLinear = 3;
    int64_t rows = frames;  // so few are never in pieces
    size_t nodes = 256 + w.layers.size() * 64;
    for (const int stride : w.config.upsample) {
        rows *= stride;
        nodes += 64 + (kConv + 2 * kLinear) * pieces(rows);
    }
    nodes += kConv * pieces(rows);
    for (const int stride : w.config.rates) {
        rows *= stride;
        nodes += 96 + (kConv + 3 * (kConv + kLinear)) * pieces(rows);
    }
    return nodes + kConv * pieces(rows);
}

GraphTensors build_graph(PlacedGraph &graph, const GraphWeights &w, ggml_tensor *state, int frames,
                         bool keep_stages) {
    return Builder(graph, w, state, frames, keep_stages).build();
}

}  // namespace kz
