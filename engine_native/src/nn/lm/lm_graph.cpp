#include "nn/lm/lm_graph.h"

namespace kz {

ggml_tensor *LmGraphBuilder::product(ggml_tensor *w, ggml_tensor *x) {
    ggml_tensor *y = ggml_mul_mat(ctx_, w, x);
    ggml_prec_set_acc(y, GGML_PREC_F32);
    return y;
}

ggml_tensor *LmGraphBuilder::norm(ggml_tensor *x, ggml_tensor *w) {
    return ggml_mul(ctx_, ggml_rms_norm(ctx_, x, b_.eps), w);
}

LmGraphTensors LmGraphBuilder::build(int head) {
    LmGraphTensors r{};
    r.input = g_.input(GGML_TYPE_F32, c_.input_width, t_);
    ggml_tensor *x = r.input;
    if (w_.proj_w) x = ggml_add(ctx_, product(w_.proj_w, x), w_.proj_b);
    for (int i = 0; i < c_.layers; i++) {
        const LmGraphLayer &l = w_.layers[static_cast<size_t>(i)];
        x = ggml_add(ctx_, x, product(l.out, attention(i, norm(x, l.attn_norm))));
        ggml_tensor *h = norm(x, l.ffn_norm);
        h = ggml_swiglu_split(ctx_, product(l.gate, h), product(l.up, h));
        x = ggml_add(ctx_, x, product(l.down, h));
    }
    r.hidden = norm(last(x), w_.output_norm);
    r.logits = product(w_.heads[static_cast<size_t>(head)], r.hidden);
    g_.output(r.hidden);
    g_.output(r.logits);
    return r;
}

}  // namespace kz
