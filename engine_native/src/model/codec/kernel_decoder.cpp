#include "model/codec/kernel_decoder.h"

#include <algorithm>

#include "nn/attend.h"
#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

KernelState::KernelState(const KernelWeights &w) {
    const CodecConfig &c = w.config;
    const auto zeros = [](int rows, int width) {
        return FloatBuffer(static_cast<size_t>(rows) * width, 0.0f);
    };
    for (int i = 0; i < c.layers; i++) {
        k.push_back(zeros(c.window - 1, c.block.kv_width()));
        v.push_back(zeros(c.window - 1, c.block.kv_width()));
    }
    pre_conv = zeros(w.pre_conv.context(), c.quant_out);
    for (const auto &s : w.upsample) {
        dwconv.push_back(zeros(s.dwconv.context(), c.latent));
        up.push_back(zeros(s.conv.context(), c.latent));
    }
    entry = zeros(w.entry.context(), c.latent);
    for (const auto &b : w.blocks) {
        block.push_back(zeros(b.conv.context(), b.conv.in));
        for (const auto &r : b.res) res.push_back(zeros(r.conv1.context(), r.conv1.in));
    }
    post_conv = zeros(w.post_conv.context(), c.channels.back());
}

void KernelState::reset() {
    position = 0;
    cached = 0;
    auto clear = [](FloatBuffer &b) { std::fill(b.begin(), b.end(), 0.0f); };
    clear(pre_conv);
    clear(entry);
    clear(post_conv);
    for (auto *list : {&dwconv, &up, &block, &res}) {
        for (auto &b : *list) clear(b);
    }
}

KernelDecoder::KernelDecoder(const KernelWeights &weights, Team &team)
    : w_(weights),
      k_(*weights.kernels),
      c_{k_, team},
      rope_(weights.config.block.head_dim, weights.config.block.rope_theta) {}

bool KernelDecoder::decode(DecoderState &decoder_state, const int32_t *codes, int n_frames,
                           float *pcm, CodecStageTimes *times) {
    auto &state = dynamic_cast<KernelState &>(decoder_state);
    CodecStageTimes unused;
    while (n_frames > 0) {
        const int n = std::min(n_frames, kMaxFrames);
        if (!decode_some(state, codes, n, pcm, times ? *times : unused)) return false;
        codes += static_cast<ptrdiff_t>(n) * w_.config.n_codebooks;
        pcm += static_cast<ptrdiff_t>(n) * w_.config.samples_per_frame;
        n_frames -= n;
    }
    return true;
}

bool KernelDecoder::decode_some(KernelState &state, const int32_t *codes, int n, float *pcm,
                                CodecStageTimes &times) {
    const CodecConfig &c = w_.config;
    int t = n;
    {
        const ScopedTimer timer(times.quant);
        padded_.resize(
            std::max(padded_.size(), static_cast<size_t>(w_.pre_conv.context() + t) * c.quant_out));
        float *quantized =
            padded_.data() + static_cast<size_t>(w_.pre_conv.context()) * c.quant_out;
        quantizer(codes, t, quantized);
        probe("quant", quantized, t, c.quant_out);
    }
    {
        const ScopedTimer timer(times.preconv);
        w_.pre_conv.run(c_, padded_.data(), state.pre_conv.data(),
                        at_least(x_, static_cast<size_t>(t) * c.latent), t, tiles_);
        probe("preconv", x_.data(), t, c.latent);
    }
    {
        const ScopedTimer timer(times.pretr);
        pre_transformer(state, t);
        probe("pretr", x_.data(), t, c.latent);
    }
    {
        const ScopedTimer timer(times.upsample);
        for (size_t i = 0; i < w_.upsample.size(); i++) {
            upsample_stage(state, i, t);
            t *= c.upsample[i];
        }
        probe("upsample", x_.data(), t, c.latent);
    }
    if (stopped()) return false;
    const ScopedTimer timer(times.bigvgan);
    const int context = w_.entry.context();
    float *padded = at_least(padded_, static_cast<size_t>(context + t) * c.latent);
    std::copy_n(x_.data(), t * c.latent, padded + static_cast<size_t>(context) * c.latent);
    w_.entry.run(c_, padded, state.entry.data(),
                 at_least(x_, static_cast<size_t>(t) * c.channels[0]), t, tiles_);
    probe("dac.entry", x_.data(), t, c.channels[0]);
    for (size_t i = 0; i < w_.blocks.size(); i++) {
        dac_block(state, i, t);
        if (stopped()) return false;
        t *= c.rates[i];
        if (i < std::size(kBlockNames)) probe(kBlockNames[i], x_.data(), t, c.channels[i + 1]);
    }
    const int width = c.channels.back(), left = w_.post_conv.context();
    padded = at_least(padded_, static_cast<size_t>(left + t) * width);
    w_.post_snake.run(c_, x_.data(), padded + static_cast<size_t>(left) * width, t);
    w_.post_conv.run(c_, padded, state.post_conv.data(), pcm, t, tiles_);
    finish_samples(pcm, t);
    probe("pcm", pcm, t, 1);
    return true;
}

// Rows of codebook 0 and the sum of the others side by side, then one product.
void KernelDecoder::quantizer(const int32_t *codes, int t, float *out) {
    const int dim = w_.config.codebook_dim;
    float *rows = at_least(h_, static_cast<size_t>(t) * 2 * static_cast<size_t>(dim));
    w_.codebooks.look_up(k_, codes, t, rows, rows + dim, 2 * dim, entry_);
    w_.quant_out.run(c_, rows, out, t);
}

// x_ [t][latent] -> x_ [t][latent]
void KernelDecoder::pre_transformer(KernelState &state, int t) {
    const BlockConfig &b = w_.config.block;
    const auto rows = static_cast<size_t>(t);
    const auto hidden = static_cast<size_t>(b.hidden);
    float *h = at_least(h_, rows * hidden);
    w_.in_proj.run(c_, x_.data(), h, t);

    angles_.compute(rope_, state.position, t);
    for (size_t l = 0; l < w_.layers.size(); l++) {
        const auto &layer = w_.layers[l];
        float *y = at_least(y_, rows * std::max(hidden, static_cast<size_t>(b.q_width())));
        float *z = at_least(
            z_, rows * static_cast<size_t>(std::max({layer.qkv.out, layer.gate_up.out, b.hidden})));
        for (size_t i = 0; i < rows; i++)
            k_.rms_norm(y + i * hidden, h + i * hidden, layer.attn_norm.data(), b.eps, b.hidden);
        layer.qkv.run(c_, y, z, t);
        attention(state, static_cast<int>(l), t);  // z_ -> y_
        layer.out.run(c_, y, z, t);
        for (size_t i = 0; i < rows; i++)
            k_.mul_add(h + i * hidden, z + i * hidden, layer.attn_scale.data(), b.hidden);

        for (size_t i = 0; i < rows; i++)
            k_.rms_norm(y + i * hidden, h + i * hidden, layer.ffn_norm.data(), b.eps, b.hidden);
        layer.gate_up.run(c_, y, z, t);
        const auto ffn = static_cast<size_t>(b.ffn);
        for (size_t i = 0; i < rows; i++)
            k_.silu_mul(z + 2 * i * ffn, z + 2 * i * ffn + ffn, b.ffn);
        layer.down.run(c_, z, y, t, false, static_cast<ptrdiff_t>(2 * ffn));
        for (size_t i = 0; i < rows; i++)
            k_.mul_add(h + i * hidden, y + i * hidden, layer.ffn_scale.data(), b.hidden);
    }
    const int kept = std::min(w_.config.window - 1, state.cached + t);
    state.position += t;
    state.cached = kept;
    float *y = at_least(y_, rows * hidden);
    for (size_t i = 0; i < rows; i++)
        k_.rms_norm(y + i * hidden, h + i * hidden, w_.output_norm.data(), b.eps, b.hidden);
    w_.out_proj.run(c_, y, x_.data(), t);
}

// z_ [t][q | k | v] -> y_ [t][q_width], with the last window - 1 keys and values from the state.
void KernelDecoder::attention(KernelState &state, int layer, int t) {
    const BlockConfig &b = w_.config.block;
    const int kv = b.kv_width(), step = b.q_width() + 2 * kv;
    const int cached = state.cached, keep = w_.config.window - 1;
    FloatBuffer &k_state = state.k[static_cast<size_t>(layer)];
    FloatBuffer &v_state = state.v[static_cast<size_t>(layer)];

    float *keys = at_least(keys_, static_cast<size_t>(cached + t) * kv);
    float *values = at_least(values_, static_cast<size_t>(cached + t) * kv);
    std::copy_n(k_state.data(), cached * kv, keys);
    std::copy_n(v_state.data(), cached * kv, values);
    for (int i = 0; i < t; i++) {
        float *row = z_.data() + static_cast<size_t>(i) * step;
        for (int head = 0; head < b.heads + b.kv_heads; head++) {
            angles_.rotate(row + head * b.head_dim, i);
        }
        std::copy_n(row + b.q_width(), kv, keys + static_cast<size_t>(cached + i) * kv);
        std::copy_n(row + b.q_width() + kv, kv, values + static_cast<size_t>(cached + i) * kv);
    }

    float *scores = at_least(scores_, static_cast<size_t>(w_.config.window));
    for (int i = 0; i < t; i++) {
        const int last = cached + i, first = std::max(0, last - keep);
        for (int head = 0; head < b.heads; head++) {
            const int offset = first * kv + head / (b.heads / b.kv_heads) * b.head_dim;
            attend_over(
                k_, z_.data() + static_cast<size_t>(i) * step + head * b.head_dim, b.head_dim,
                last - first + 1,
                [&](int p) { return keys + offset + static_cast<size_t>(p) * kv; },
                [&](int p) { return values + offset + static_cast<size_t>(p) * kv; }, scores,
                y_.data() + static_cast<size_t>(i) * b.q_width() + head * b.head_dim);
        }
    }
    const int kept = std::min(keep, cached + t);
    std::copy_n(keys + static_cast<size_t>(cached + t - kept) * kv, kept * kv, k_state.data());
    std::copy_n(values + static_cast<size_t>(cached + t - kept) * kv, kept * kv, v_state.data());
}

// x_ [t][latent] -> x_ [t * stride][latent]
void KernelDecoder::upsample_stage(KernelState &state, size_t index, int t) {
    const auto &s = w_.upsample[index];
    const int width = w_.config.latent, out_t = t * w_.config.upsample[index];
    const int context = s.dwconv.context();
    const auto rows = static_cast<size_t>(out_t), columns = static_cast<size_t>(width);
    float *y = at_least(y_, std::max(rows, static_cast<size_t>(s.conv.context() + t)) * columns);
    float *padded = at_least(padded_, (static_cast<size_t>(context) + rows) * columns);
    float *x = padded + static_cast<size_t>(context) * columns;
    std::copy_n(x_.data(), static_cast<size_t>(t) * columns,
                y + static_cast<size_t>(s.conv.context()) * columns);
    s.conv.run(c_, y, state.up[index].data(), x, t, tiles_);

    FloatBuffer &left = state.dwconv[index];
    std::copy_n(left.data(), left.size(), padded);
    s.dwconv.run(k_, padded, y, out_t);
    keep_context(padded, left.data(), context, out_t, width);

    for (size_t i = 0; i < rows; i++) {
        k_.layer_norm(y + i * columns, y + i * columns, s.norm_w.data(), s.norm_b.data(), 1e-6f,
                      width);
    }
    float *z = at_least(z_, rows * static_cast<size_t>(s.pw1.out));
    s.pw1.run(c_, y, z, out_t);
    k_.gelu(z, out_t * s.pw1.out);
    s.pw2.run(c_, z, y, out_t);
    float *out = at_least(x_, rows * columns);
    std::copy_n(x, rows * columns, out);
    for (size_t i = 0; i < rows; i++)
        k_.mul_add(out + i * columns, y + i * columns, s.gamma.data(), width);
}

// x_ [t][in] -> x_ [t * rate][out]
void KernelDecoder::dac_block(KernelState &state, size_t index, int t) {
    const auto &b = w_.blocks[index];
    const int rate = w_.config.rates[index], out_t = t * rate, width = b.conv.out / rate;
    const int before = b.conv.context();
    float *padded = at_least(padded_, static_cast<size_t>(before + t) * b.conv.in);
    b.snake.run(c_, x_.data(), padded + static_cast<size_t>(before) * b.conv.in, t);
    float *x = at_least(x_, static_cast<size_t>(out_t) * width);
    b.conv.run(c_, padded, state.block[index].data(), x, t, tiles_);

    float *y = at_least(y_, static_cast<size_t>(out_t) * width);
    for (size_t u = 0; u < 3; u++) {
        const auto &r = b.res[u];
        const int context = r.conv1.context();
        padded = at_least(padded_, static_cast<size_t>(context + out_t) * width);
        r.act1.run(c_, x, padded + static_cast<size_t>(context) * width, out_t);
        r.conv1.run(c_, padded, state.res[index * 3 + u].data(), y, out_t, tiles_);
        r.act2.run(c_, y, y, out_t);
        r.conv2.run(c_, y, x, out_t, true);
    }
}

}  // namespace kz
