#include <algorithm>
#include <string>

#include "model/codec_decoder.h"
#include "runtime/status.h"

namespace kz {

namespace {

constexpr int kDilations[3] = {1, 3, 9};

// Several matrices with the same input, side by side in one product.
Linear read_joined(const GgufFile &f, const Kernels &k, int in,
                   const std::vector<std::pair<std::string, int>> &parts) {
    Linear l;
    l.in = in;
    FloatBuffer rows;  // [out][in], one matrix after the other
    for (const auto &[name, out] : parts) {
        const FloatBuffer w = f.read_f32(f.require(name, {in, out}));
        rows.insert(rows.end(), w.begin(), w.end());
        l.out += out;
    }
    l.w = pack_panels(k, in, l.out, [&](int o, float *column) {
        std::copy_n(rows.data() + static_cast<size_t>(o) * in, in, column);
    });
    return l;
}

// The two quantizers' output projections as one product over [first ; rest].
Linear read_quant_out(const GgufFile &f, const Kernels &k, const CodecConfig &c) {
    Linear l;
    l.in = 2 * c.codebook_dim;
    l.out = c.quant_out;
    const FloatBuffer first = f.read_f32(
        f.require("a.gen.wav.quant.first.out_proj.weight", {c.codebook_dim, c.quant_out}));
    const FloatBuffer rest = f.read_f32(
        f.require("a.gen.wav.quant.rest.out_proj.weight", {c.codebook_dim, c.quant_out}));
    l.w = pack_panels(k, l.in, l.out, [&](int o, float *column) {
        for (const FloatBuffer *w : {&first, &rest}) {
            std::copy_n(w->data() + static_cast<size_t>(o) * c.codebook_dim, c.codebook_dim,
                        column);
            column += c.codebook_dim;
        }
    });
    return l;
}

PreTransformerLayer read_layer(const GgufFile &f, const Kernels &k, const BlockConfig &b,
                               int index) {
    const std::string p = "a.gen.wav.tfm.blk." + std::to_string(index) + ".";
    PreTransformerLayer l;
    l.attn_norm = read_vector(f, p + "ln1.weight", b.hidden);
    l.ffn_norm = read_vector(f, p + "ln2.weight", b.hidden);
    l.attn_scale = read_vector(f, p + "ls1.weight", b.hidden);
    l.ffn_scale = read_vector(f, p + "ls2.weight", b.hidden);
    l.qkv = read_joined(f, k, b.hidden,
                        {{p + "attn_q.weight", b.q_width()},
                         {p + "attn_k.weight", b.kv_width()},
                         {p + "attn_v.weight", b.kv_width()}});
    l.out = read_linear(f, k, p + "attn_out.weight", "", b.q_width(), b.hidden);
    l.gate_up =
        read_joined(f, k, b.hidden, {{p + "ffn_gate.weight", b.ffn}, {p + "ffn_up.weight", b.ffn}});
    l.down = read_linear(f, k, p + "ffn_down.weight", "", b.ffn, b.hidden);
    return l;
}

UpsampleStage read_upsample(const GgufFile &f, const Kernels &k, const CodecConfig &c, int index) {
    const std::string p = "a.gen.wav.up.blk." + std::to_string(index) + ".";
    UpsampleStage s;
    s.conv = read_transposed_conv(f, k, p + "conv", c.latent, c.latent,
                                  c.upsample[static_cast<size_t>(index)]);
    s.dwconv = read_depthwise_conv(f, p + "dwconv", c.latent);
    s.norm_w = read_vector(f, p + "norm.weight", c.latent);
    s.norm_b = read_vector(f, p + "norm.bias", c.latent);
    s.pw1 = read_linear(f, k, p + "pw1.weight", p + "pw1.bias", c.latent, c.upsample_ffn);
    s.pw2 = read_linear(f, k, p + "pw2.weight", p + "pw2.bias", c.upsample_ffn, c.latent);
    s.gamma = read_vector(f, p + "gamma", c.latent);
    return s;
}

DacBlock read_block(const GgufFile &f, const Kernels &k, const CodecConfig &c, size_t index) {
    const std::string p = "a.gen.wav.dac.blk." + std::to_string(index) + ".";
    const int in = c.channels[index], out = c.channels[index + 1];
    DacBlock b;
    b.snake = read_snake(f, p + "snake", in);
    b.conv = read_transposed_conv(f, k, p + "conv", in, out, c.rates[index]);
    for (int u = 0; u < 3; u++) {
        const std::string r = p + "res." + std::to_string(u) + ".";
        b.res[u].act1 = read_snake(f, r + "act1", out);
        b.res[u].conv1 = read_causal_conv(f, k, r + "conv1", out, out, kDilations[u]);
        b.res[u].act2 = read_snake(f, r + "act2", out);
        // A 1-tap convolution is a product per step; the file keeps its tap dimension.
        const CausalConv c2 = read_causal_conv(f, k, r + "conv2", out, out, 1);
        if (c2.taps != 1) {
            fail(KZ_ERR_FORMAT, "%s: tensor %sconv2.weight has %d taps, expected 1",
                 f.path().c_str(), r.c_str(), c2.taps);
        }
        b.res[u].conv2 = {out, out, c2.w, c2.bias};
    }
    return b;
}

int64_t codec_weight_floats(const CodecWeights &w) {
    int64_t n = 0;
    auto add = [&n](const FloatBuffer &b) { n += static_cast<int64_t>(b.size()); };
    for (const auto &book : w.codebooks) add(book);
    for (const Linear *l : {&w.quant_out, &w.in_proj, &w.out_proj}) add(l->w);
    for (const CausalConv *c : {&w.pre_conv, &w.entry, &w.post_conv}) add(c->w);
    for (const auto &l : w.layers) {
        for (const Linear *m : {&l.qkv, &l.out, &l.gate_up, &l.down}) add(m->w);
    }
    for (const auto &s : w.upsample) {
        add(s.conv.w);
        add(s.pw1.w);
        add(s.pw2.w);
    }
    for (const auto &b : w.blocks) {
        add(b.conv.w);
        for (const auto &r : b.res) {
            add(r.conv1.w);
            add(r.conv2.w);
        }
    }
    return n;
}

}  // namespace

CodecWeights load_codec_weights(const GgufFile &f, const Kernels &k) {
    CodecWeights w;
    w.config = read_codec_config(f);
    w.kernels = &k;
    const CodecConfig &c = w.config;

    w.codebooks.push_back(f.read_f32(
        f.require("a.gen.wav.quant.first.codebook.weight", {c.codebook_dim, c.codebook_size})));
    const FloatBuffer rest =
        f.read_f32(f.require("a.gen.wav.quant.rest.codebook.weight",
                             {c.codebook_dim, c.codebook_size, c.n_codebooks - 1}));
    const auto book = static_cast<ptrdiff_t>(c.codebook_dim) * c.codebook_size;
    for (int i = 0; i + 1 < c.n_codebooks; i++)
        w.codebooks.emplace_back(rest.begin() + i * book, rest.begin() + (i + 1) * book);
    w.quant_out = read_quant_out(f, k, c);
    w.pre_conv = read_causal_conv(f, k, "a.gen.wav.pre_conv", c.quant_out, c.latent, 1);

    w.in_proj = read_linear(f, k, "a.gen.wav.tfm.in_proj.weight", "a.gen.wav.tfm.in_proj.bias",
                            c.latent, c.block.hidden);
    for (int i = 0; i < c.layers; i++) w.layers.push_back(read_layer(f, k, c.block, i));
    w.output_norm = read_vector(f, "a.gen.wav.tfm.output_norm.weight", c.block.hidden);
    w.out_proj = read_linear(f, k, "a.gen.wav.tfm.out_proj.weight", "a.gen.wav.tfm.out_proj.bias",
                             c.block.hidden, c.latent);

    for (size_t i = 0; i < c.upsample.size(); i++)
        w.upsample.push_back(read_upsample(f, k, c, static_cast<int>(i)));
    w.entry = read_causal_conv(f, k, "a.gen.wav.dac.entry", c.latent, c.channels[0], 1);
    for (size_t i = 0; i < c.rates.size(); i++) w.blocks.push_back(read_block(f, k, c, i));
    w.post_snake = read_snake(f, "a.gen.wav.dac.post_snake", c.channels.back());
    w.post_conv = read_causal_conv(f, k, "a.gen.wav.dac.post_conv", c.channels.back(), 1, 1);
    w.bytes = codec_weight_floats(w) * static_cast<int64_t>(sizeof(float));
    return w;
}

}  // namespace kz
