#include "model/codec/kernel_weights.h"

#include <string>

namespace kz {

namespace {

// The two quantizers' output projections as one product over [first ; rest].
Linear read_quant_out(const GgufFile &f, const Kernels &k, const CodecConfig &c) {
    const int dim = c.codebook_dim, out = c.quant_out;
    return read_joined(f, k, 2 * dim, out,
                       {{"a.gen.wav.quant.first.out_proj.weight", dim, out, 0, 0},
                        {"a.gen.wav.quant.rest.out_proj.weight", dim, out, dim, 0}},
                       1);
}

PreTransformerLayer read_layer(const GgufFile &f, const Kernels &k, const BlockConfig &b,
                               int index) {
    const std::string p = "a.gen.wav.tfm.blk." + std::to_string(index) + ".";
    PreTransformerLayer l;
    l.attn_norm = read_vector(f, p + "ln1.weight", b.hidden);
    l.ffn_norm = read_vector(f, p + "ln2.weight", b.hidden);
    l.attn_scale = read_vector(f, p + "ls1.weight", b.hidden);
    l.ffn_scale = read_vector(f, p + "ls2.weight", b.hidden);
    const int h = b.hidden, q = b.q_width(), kv = b.kv_width();
    l.qkv = read_joined(f, k, h, q + 2 * kv,
                        {{p + "attn_q.weight", h, q, 0, 0},
                         {p + "attn_k.weight", h, kv, 0, q},
                         {p + "attn_v.weight", h, kv, 0, q + kv}},
                        1);
    l.out = read_linear(f, k, p + "attn_out.weight", "", q, h, 1);
    l.gate_up = read_joined(
        f, k, h, 2 * b.ffn,
        {{p + "ffn_gate.weight", h, b.ffn, 0, 0}, {p + "ffn_up.weight", h, b.ffn, 0, b.ffn}}, 1);
    l.down = read_linear(f, k, p + "ffn_down.weight", "", b.ffn, h, 1);
    return l;
}

// plan: at the input of the stage.
UpsampleStage read_upsample(const GgufFile &f, const Kernels &k, const CodecConfig &c, size_t index,
                            LayerPlan plan) {
    const std::string p = "a.gen.wav.up.blk." + std::to_string(index) + ".";
    const int rows = plan.rows * c.upsample[index];
    UpsampleStage s;
    s.conv = read_transposed_conv(f, k, p + "conv", c.latent, c.latent, c.upsample[index], plan);
    s.dwconv = read_depthwise_conv(f, p + "dwconv", c.latent);
    s.norm_w = read_vector(f, p + "norm.weight", c.latent);
    s.norm_b = read_vector(f, p + "norm.bias", c.latent);
    s.pw1 = read_linear(f, k, p + "pw1.weight", p + "pw1.bias", c.latent, c.upsample_ffn, rows);
    s.pw2 = read_linear(f, k, p + "pw2.weight", p + "pw2.bias", c.upsample_ffn, c.latent, rows);
    s.gamma = read_vector(f, p + "gamma", c.latent);
    return s;
}

Snake read_snake(const GgufFile &f, const std::string &name, int channels) {
    return {read_vector(f, name + ".alpha", channels), read_vector(f, name + ".beta", channels)};
}

// plan: at the input of the block.
DacBlock read_block(const GgufFile &f, const Kernels &k, const CodecConfig &c, size_t index,
                    LayerPlan plan) {
    const std::string p = "a.gen.wav.dac.blk." + std::to_string(index) + ".";
    const int in = c.channels[index], out = c.channels[index + 1];
    DacBlock b;
    b.snake = read_snake(f, p + "snake", in);
    b.rate = c.rates[index];
    b.conv = read_transposed_conv(f, k, p + "conv", in, out, b.rate, plan);
    plan.rows *= b.rate;
    for (int u = 0; u < 3; u++) {
        const std::string r = p + "res." + std::to_string(u) + ".";
        b.res[u].act1 = read_snake(f, r + "act1", out);
        b.res[u].conv1 = read_causal_conv(f, k, r + "conv1", out, out, kDilations[u], plan);
        b.res[u].act2 = read_snake(f, r + "act2", out);
        f.require(r + "conv2.weight", {1, out, out});  // one tap: a product a step
        CausalConv c2 = read_causal_conv(f, k, r + "conv2", out, out, 1, plan);
        b.res[u].conv2 = {out, out, std::move(c2.w), std::move(c2.bias)};
    }
    return b;
}

int64_t weight_bytes(const KernelWeights &w) {
    int64_t n = w.codebooks.bytes();
    auto linear = [&n](const Linear &l) { n += static_cast<int64_t>(l.w.bytes()); };
    for (const Linear *l : {&w.quant_out, &w.in_proj, &w.out_proj}) linear(*l);
    for (const CausalConv *c : {&w.pre_conv, &w.entry, &w.post_conv}) n += c->weight_bytes();
    for (const auto &l : w.layers) {
        for (const Linear *m : {&l.qkv, &l.out, &l.gate_up, &l.down}) linear(*m);
    }
    for (const auto &s : w.upsample) {
        n += s.conv.weight_bytes();
        linear(s.pw1);
        linear(s.pw2);
    }
    for (const auto &b : w.blocks) {
        n += b.conv.weight_bytes();
        for (const auto &r : b.res) {
            n += r.conv1.weight_bytes();
            linear(r.conv2);
        }
    }
    return n;
}

}  // namespace

KernelWeights load_kernel_weights(const GgufFile &f, const Kernels &k, bool exact) {
    KernelWeights w;
    w.config = read_codec_config(f);
    w.kernels = &k;
    const CodecConfig &c = w.config;

    w.codebooks = Codebooks(f, c);
    w.quant_out = read_quant_out(f, k, c);
    w.pre_conv = read_causal_conv(f, k, "a.gen.wav.pre_conv", c.quant_out, c.latent, 1, {1, exact});

    w.in_proj = read_linear(f, k, "a.gen.wav.tfm.in_proj.weight", "a.gen.wav.tfm.in_proj.bias",
                            c.latent, c.block.hidden, 1);
    for (int i = 0; i < c.layers; i++) w.layers.push_back(read_layer(f, k, c.block, i));
    w.output_norm = read_vector(f, "a.gen.wav.tfm.output_norm.weight", c.block.hidden);
    w.out_proj = read_linear(f, k, "a.gen.wav.tfm.out_proj.weight", "a.gen.wav.tfm.out_proj.bias",
                             c.block.hidden, c.latent, 1);

    LayerPlan plan{1, exact};
    for (size_t i = 0; i < c.upsample.size(); i++) {
        w.upsample.push_back(read_upsample(f, k, c, i, plan));
        plan.rows *= c.upsample[i];
    }
    w.entry = read_causal_conv(f, k, "a.gen.wav.dac.entry", c.latent, c.channels[0], 1, plan);
    for (size_t i = 0; i < c.rates.size(); i++) {
        w.blocks.push_back(read_block(f, k, c, i, plan));
        plan.rows *= c.rates[i];
    }
    w.post_snake = read_snake(f, "a.gen.wav.dac.post_snake", c.channels.back());
    w.post_conv = read_causal_conv(f, k, "a.gen.wav.dac.post_conv", c.channels.back(), 1, 1, plan);
    w.bytes = weight_bytes(w);
    return w;
}

}  // namespace kz
