// The layers of the codec decoder, and their names and shapes in a file, for either form of it.  A
// form F says what holds a vector, a matrix, a convolution; its loader reads them:
//   vector(name, n)                           F::Vector [n]
//   linear(weight, bias, in, out)             F::Linear, a bias named "" is none
//   joined(in, out, parts)                    F::Joined, matrices that share inputs or outputs
//   conv(name, in, out, dilation)             F::Conv, causal
//   transposed(name, in, out, stride)         F::Conv, `stride` steps an input
//   point(name, in, out)                      F::Linear, a convolution of one tap
//   depthwise(name, channels)                 F::Depthwise, causal
//   window(width, rows)                       F::Window, keys and values of earlier positions
// in the order in which the decoder computes them.
#pragma once

#include <string>
#include <vector>

#include "model/codec/codebooks.h"
#include "nn/linear.h"
#include "weights/config.h"

namespace kz {

template <typename F>
struct PreTransformerLayer {
    typename F::Vector attn_norm, ffn_norm;    // [hidden]
    typename F::Vector attn_scale, ffn_scale;  // [hidden], LayerScale
    typename F::Joined qkv;                    // hidden -> q, k, v
    typename F::Linear out;
    typename F::Joined gate_up;  // hidden -> gate, up
    typename F::Linear down;
    typename F::Window window;
};

template <typename F>
struct UpsampleStage {
    typename F::Conv conv;  // transposed
    typename F::Depthwise dwconv;
    typename F::Vector norm_w, norm_b;  // [latent]
    typename F::Linear pw1, pw2;
    typename F::Vector gamma;  // [latent]
};

template <typename F>
struct ResidualUnit {
    typename F::Snake act1;
    typename F::Conv conv1;
    typename F::Snake act2;
    typename F::Linear conv2;
};

template <typename F>
struct DacBlock {
    typename F::Snake snake;
    typename F::Conv conv;  // transposed
    ResidualUnit<F> res[3];
};

template <typename F>
struct CodecLayers {
    CodecConfig config;
    const Kernels *kernels = nullptr;
    Codebooks codebooks;
    typename F::Joined quant_out;  // [first, rest] of codebook_dim each -> quant_out, their sum
    typename F::Conv pre_conv;
    typename F::Linear in_proj;
    std::vector<PreTransformerLayer<F>> layers;
    typename F::Vector output_norm{};  // [hidden]
    typename F::Linear out_proj;
    std::vector<UpsampleStage<F>> upsample;
    typename F::Conv entry;
    std::vector<DacBlock<F>> blocks;
    typename F::Snake post_snake;
    typename F::Conv post_conv;
};

template <typename F, typename Loader>
class LayerReader {
  public:
    LayerReader(const CodecConfig &config, Loader &loader) : c_(config), l_(loader) {}

    void read(CodecLayers<F> &w) {
        const std::string p = "a.gen.wav.";
        const int dim = c_.codebook_dim, hidden = c_.block.hidden;
        w.quant_out = l_.joined(2 * dim, c_.quant_out,
                                {{p + "quant.first.out_proj.weight", dim, c_.quant_out, 0, 0},
                                 {p + "quant.rest.out_proj.weight", dim, c_.quant_out, dim, 0}});
        w.pre_conv = l_.conv(p + "pre_conv", c_.quant_out, c_.latent, 1);
        w.in_proj = l_.linear(p + "tfm.in_proj.weight", p + "tfm.in_proj.bias", c_.latent, hidden);
        for (int i = 0; i < c_.layers; i++)
            w.layers.push_back(layer(p + "tfm.blk." + std::to_string(i) + "."));
        w.output_norm = l_.vector(p + "tfm.output_norm.weight", hidden);
        w.out_proj =
            l_.linear(p + "tfm.out_proj.weight", p + "tfm.out_proj.bias", hidden, c_.latent);
        for (size_t i = 0; i < c_.upsample.size(); i++)
            w.upsample.push_back(upsample(p + "up.blk." + std::to_string(i) + ".", c_.upsample[i]));
        w.entry = l_.conv(p + "dac.entry", c_.latent, c_.channels[0], 1);
        for (size_t i = 0; i < c_.rates.size(); i++) {
            w.blocks.push_back(block(p + "dac.blk." + std::to_string(i) + ".", c_.channels[i],
                                     c_.channels[i + 1], c_.rates[i]));
        }
        w.post_snake = snake(p + "dac.post_snake", c_.channels.back());
        w.post_conv = l_.conv(p + "dac.post_conv", c_.channels.back(), 1, 1);
    }

  private:
    PreTransformerLayer<F> layer(const std::string &p) {
        const BlockConfig &b = c_.block;
        const int h = b.hidden, q = b.q_width(), kv = b.kv_width();
        PreTransformerLayer<F> r;
        r.attn_norm = l_.vector(p + "ln1.weight", h);
        r.ffn_norm = l_.vector(p + "ln2.weight", h);
        r.attn_scale = l_.vector(p + "ls1.weight", h);
        r.ffn_scale = l_.vector(p + "ls2.weight", h);
        r.qkv = l_.joined(h, q + 2 * kv,
                          {{p + "attn_q.weight", h, q, 0, 0},
                           {p + "attn_k.weight", h, kv, 0, q},
                           {p + "attn_v.weight", h, kv, 0, q + kv}});
        r.out = l_.linear(p + "attn_out.weight", "", q, h);
        r.gate_up = l_.joined(
            h, 2 * b.ffn,
            {{p + "ffn_gate.weight", h, b.ffn, 0, 0}, {p + "ffn_up.weight", h, b.ffn, 0, b.ffn}});
        r.down = l_.linear(p + "ffn_down.weight", "", b.ffn, h);
        r.window = l_.window(kv, c_.window - 1);
        return r;
    }

    UpsampleStage<F> upsample(const std::string &p, int stride) {
        UpsampleStage<F> s;
        s.conv = l_.transposed(p + "conv", c_.latent, c_.latent, stride);
        s.dwconv = l_.depthwise(p + "dwconv", c_.latent);
        s.norm_w = l_.vector(p + "norm.weight", c_.latent);
        s.norm_b = l_.vector(p + "norm.bias", c_.latent);
        s.pw1 = l_.linear(p + "pw1.weight", p + "pw1.bias", c_.latent, c_.upsample_ffn);
        s.pw2 = l_.linear(p + "pw2.weight", p + "pw2.bias", c_.upsample_ffn, c_.latent);
        s.gamma = l_.vector(p + "gamma", c_.latent);
        return s;
    }

    DacBlock<F> block(const std::string &p, int in, int out, int rate) {
        DacBlock<F> b;
        b.snake = snake(p + "snake", in);
        b.conv = l_.transposed(p + "conv", in, out, rate);
        for (int u = 0; u < 3; u++) {
            const std::string r = p + "res." + std::to_string(u) + ".";
            b.res[u].act1 = snake(r + "act1", out);
            b.res[u].conv1 = l_.conv(r + "conv1", out, out, kDilations[u]);
            b.res[u].act2 = snake(r + "act2", out);
            b.res[u].conv2 = l_.point(r + "conv2", out, out);
        }
        return b;
    }

    typename F::Snake snake(const std::string &name, int channels) {
        return {l_.vector(name + ".alpha", channels), l_.vector(name + ".beta", channels)};
    }

    const CodecConfig &c_;
    Loader &l_;
};

}  // namespace kz
