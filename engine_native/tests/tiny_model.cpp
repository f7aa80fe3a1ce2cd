#include "tiny_model.h"

#include <cmath>
#include <cstring>

#include "testing.h"

namespace kz::testing {

void GgufWriter::tensor(const std::string &name, std::array<int64_t, 4> ne, float scale,
                        float base) {
    if (name == left_out) return;
    const int dims = ne[2] != 1 ? 3 : ne[1] != 1 ? 2 : 1;
    const int64_t n = ggml_nelements(ggml_new_tensor(ctx_.get(), GGML_TYPE_F32, dims, ne.data()));
    std::vector<float> values(static_cast<size_t>(n));
    for (float &x : values) x = base + scale * noise(seed_);
    const bool matrix = dims > 1;
    ggml_tensor *t =
        ggml_new_tensor(ctx_.get(), matrix && !widened ? matrices : GGML_TYPE_F32, dims, ne.data());
    ggml_set_name(t, name.c_str());
    if (matrix && matrices != GGML_TYPE_F32) {
        std::vector<uint16_t> half(values.size());
        const ggml_type_traits *traits = ggml_get_type_traits(matrices);
        traits->from_float_ref(values.data(), half.data(), n);
        if (widened) {
            traits->to_float(half.data(), values.data(), n);
        } else {
            std::memcpy(t->data, half.data(), ggml_nbytes(t));
        }
    }
    if (t->type == GGML_TYPE_F32) std::memcpy(t->data, values.data(), ggml_nbytes(t));
    gguf_add_tensor(gguf_, t);
}

namespace {

void write_block(GgufWriter &w, const std::string &p, bool talker, int64_t hidden, int64_t q,
                 int64_t kv, int64_t dim, int64_t ffn) {
    const float s = 1.5f / std::sqrt(static_cast<float>(hidden));
    w.tensor(p + (talker ? "attn_norm" : "ln1") + ".weight", {hidden, 1, 1, 1}, 0.1f, 1);
    w.tensor(p + "attn_q.weight", {hidden, q, 1, 1}, s);
    w.tensor(p + "attn_k.weight", {hidden, kv, 1, 1}, s);
    w.tensor(p + "attn_v.weight", {hidden, kv, 1, 1}, s);
    w.tensor(p + (talker ? "attn_output" : "attn_out") + ".weight", {q, hidden, 1, 1}, s);
    w.tensor(p + "attn_q_norm.weight", {dim, 1, 1, 1}, 0.1f, 1);
    w.tensor(p + "attn_k_norm.weight", {dim, 1, 1, 1}, 0.1f, 1);
    w.tensor(p + (talker ? "ffn_norm" : "ln2") + ".weight", {hidden, 1, 1, 1}, 0.1f, 1);
    w.tensor(p + "ffn_gate.weight", {hidden, ffn, 1, 1}, s);
    w.tensor(p + "ffn_up.weight", {hidden, ffn, 1, 1}, s);
    w.tensor(p + "ffn_down.weight", {ffn, hidden, 1, 1}, s);
}

}  // namespace

void write_talker(const std::string &path, const std::string &left_out) {
    GgufWriter w;
    w.left_out = left_out;
    w.text("general.architecture", "qwen3tts");
    w.u32("qwen3tts.block_count", 2);
    w.u32("qwen3tts.embedding_length", 32);
    w.u32("qwen3tts.feed_forward_length", 48);
    w.u32("qwen3tts.attention.head_count", 4);
    w.u32("qwen3tts.attention.head_count_kv", 2);
    w.u32("qwen3tts.attention.key_length", 8);
    w.u32("qwen3tts.context_length", 4096);
    w.f32("qwen3tts.attention.layer_norm_rms_epsilon", 1e-6f);
    w.f32("qwen3tts.rope.freq_base", 1e6f);
    w.u32("kazeia.codec.eos_id", kEos);
    for (int i = 0; i < 2; i++)
        write_block(w, "blk." + std::to_string(i) + ".", true, 32, 32, 16, 8, 48);
    w.tensor("output_norm.weight", {32, 1, 1, 1}, 0.1f, 1);
    w.tensor("output.weight", {32, kCodecVocab, 1, 1}, 0.5f);
    w.tensor("token_embd.weight", {32, kTextVocab + kCodecVocab, 1, 1}, 1);
    w.write(path);
}

void write_decoder_tensors(GgufWriter &w, float gain, int64_t hidden, int64_t q, int64_t ffn,
                           int64_t wide) {
    const std::string p = "a.gen.wav.";
    constexpr int64_t dim = 8, quant = 12, latent = 16;
    w.tensor(p + "quant.first.codebook.weight", {dim, kCodebook, 1, 1}, 1);
    w.tensor(p + "quant.rest.codebook.weight", {dim, kCodebook, kSteps, 1}, 0.4f);
    w.tensor(p + "quant.first.out_proj.weight", {dim, quant, 1, 1}, 0.5f);
    w.tensor(p + "quant.rest.out_proj.weight", {dim, quant, 1, 1}, 0.5f);
    w.tensor(p + "pre_conv.weight", {3, quant, latent, 1}, 0.3f);
    w.tensor(p + "pre_conv.bias", {latent, 1, 1, 1}, 0.1f);
    w.tensor(p + "tfm.in_proj.weight", {latent, hidden, 1, 1}, 0.4f);
    w.tensor(p + "tfm.in_proj.bias", {hidden, 1, 1, 1}, 0.1f);
    for (int i = 0; i < 2; i++) {
        const std::string b = p + "tfm.blk." + std::to_string(i) + ".";
        for (const char *name : {"ln1", "ln2", "ls1", "ls2"})
            w.tensor(b + name + ".weight", {hidden, 1, 1, 1}, 0.2f, 0.8f);
        for (const char *name : {"attn_q", "attn_k", "attn_v"})
            w.tensor(b + name + ".weight", {hidden, q, 1, 1}, 0.6f);
        w.tensor(b + "attn_out.weight", {q, hidden, 1, 1}, 0.5f);
        w.tensor(b + "ffn_gate.weight", {hidden, ffn, 1, 1}, 0.5f);
        w.tensor(b + "ffn_up.weight", {hidden, ffn, 1, 1}, 0.5f);
        w.tensor(b + "ffn_down.weight", {ffn, hidden, 1, 1}, 0.5f);
    }
    w.tensor(p + "tfm.output_norm.weight", {hidden, 1, 1, 1}, 0.1f, 1);
    w.tensor(p + "tfm.out_proj.weight", {hidden, latent, 1, 1}, 0.5f);
    w.tensor(p + "tfm.out_proj.bias", {latent, 1, 1, 1}, 0.1f);
    for (int i = 0; i < 2; i++) {
        const std::string b = p + "up.blk." + std::to_string(i) + ".";
        w.tensor(b + "conv.weight", {2, latent, latent, 1}, 0.4f);
        w.tensor(b + "dwconv.weight", {7, 1, latent, 1}, 0.4f);
        w.tensor(b + "pw1.weight", {latent, 32, 1, 1}, 0.4f);
        w.tensor(b + "pw1.bias", {32, 1, 1, 1}, 0.1f);
        w.tensor(b + "pw2.weight", {32, latent, 1, 1}, 0.4f);
        for (const char *name : {"conv.bias", "dwconv.bias", "norm.bias", "pw2.bias"})
            w.tensor(b + name, {latent, 1, 1, 1}, 0.1f);
        w.tensor(b + "norm.weight", {latent, 1, 1, 1}, 0.1f, 1);
        w.tensor(b + "gamma", {latent, 1, 1, 1}, 0.5f);
    }
    std::vector<int64_t> channels{16 * wide, 8 * wide, 6 * wide, 4 * wide, 3 * wide};
    std::vector<int64_t> rates{8, 5, 4, 3};
    rates.resize(rates.size() + static_cast<size_t>(w.still_blocks), 1);
    channels.resize(rates.size() + 1, 3 * wide);
    const float narrow = 1 / std::sqrt(static_cast<float>(wide));
    w.tensor(p + "dac.entry.weight", {7, latent, channels[0], 1}, 0.2f);
    w.tensor(p + "dac.entry.bias", {channels[0], 1, 1, 1}, 0.1f);
    for (size_t i = 0; i < rates.size(); i++) {
        const std::string b = p + "dac.blk." + std::to_string(i) + ".";
        const int64_t in = channels[i], out = channels[i + 1];
        const auto snake = [&](const std::string &name, int64_t n) {
            w.tensor(name + ".alpha", {n, 1, 1, 1}, 0.3f, 1);
            w.tensor(name + ".beta", {n, 1, 1, 1}, 0.2f, 0.4f);
        };
        snake(b + "snake", in);
        w.tensor(b + "conv.weight", {2 * rates[i], out, in, 1}, 0.4f * narrow);
        w.tensor(b + "conv.bias", {out, 1, 1, 1}, 0.1f);
        for (int u = 0; u < 3; u++) {
            const std::string r = b + "res." + std::to_string(u) + ".";
            snake(r + "act1", out);
            snake(r + "act2", out);
            w.tensor(r + "conv1.weight", {7, out, out, 1}, 0.2f * narrow);
            w.tensor(r + "conv1.bias", {out, 1, 1, 1}, 0.1f);
            w.tensor(r + "conv2.weight", {1, out, out, 1}, 0.3f * narrow);
            w.tensor(r + "conv2.bias", {out, 1, 1, 1}, 0.1f);
        }
    }
    w.tensor(p + "dac.post_snake.alpha", {channels.back(), 1, 1, 1}, 0.3f, 1);
    w.tensor(p + "dac.post_snake.beta", {channels.back(), 1, 1, 1}, 0.2f, 0.4f);
    w.tensor(p + "dac.post_conv.weight", {7, channels.back(), 1, 1}, 0.1f * gain * narrow);
    w.tensor(p + "dac.post_conv.bias", {1, 1, 1, 1}, 0.05f * gain);
}

void write_codec(GgufWriter &w, const std::string &path, float gain, int64_t wide) {
    w.text("general.architecture", "clip");
    w.u32("clip.gen.audio.block_count", 2);
    w.u32("clip.gen.audio.embedding_length", 24);
    w.u32("clip.gen.audio.feed_forward_length", 40);
    w.u32("clip.gen.audio.attention.head_count", 4);
    w.u32("clip.gen.audio.attention.head_count_kv", 2);
    w.f32("clip.gen.audio.attention.layer_norm_epsilon", 1e-6f);
    w.u32("kazeia.codec.heads", 4);
    w.u32("kazeia.codec.sliding_window", 6);
    for (int i = 0; i < 2; i++)
        write_block(w, "a.gen.code.blk." + std::to_string(i) + ".", false, 24, 32, 16, 8, 40);
    w.tensor("a.gen.code.output_norm.weight", {24, 1, 1, 1}, 0.1f, 1);
    w.tensor("a.gen.code.proj_in.weight", {32, 24, 1, 1}, 0.3f);
    w.tensor("a.gen.code.proj_in.bias", {24, 1, 1, 1}, 0.1f);
    w.tensor("a.gen.code.head.weight", {24, kCodebook, kSteps, 1}, 0.5f);
    w.tensor("a.gen.code.embd.weight", {32, kCodebook, kSteps, 1}, 0.3f);
    write_decoder_tensors(w, gain, 8, 16, 24, wide);
    w.write(path);
}

void write_codec(const std::string &path, const std::string &left_out, float gain) {
    GgufWriter w;
    w.left_out = left_out;
    write_codec(w, path, gain);
}

}  // namespace kz::testing
