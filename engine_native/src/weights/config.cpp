#include "weights/config.h"

#include <string>

#include "runtime/status.h"

namespace kz {

namespace {

// Sizes beyond these come only from damaged files; the bounds keep later products inside 63 bits.
constexpr uint32_t kMaxWidth = 1u << 20;
constexpr uint32_t kMaxLayers = 512;

int bounded(const GgufFile &file, const char *key, uint32_t value, uint32_t max) {
    if (value < 1 || value > max) {
        fail(KZ_ERR_FORMAT, "%s: key %s is %u, expected 1..%u", file.path().c_str(), key, value,
             max);
    }
    return static_cast<int>(value);
}

int size_key(const GgufFile &file, const char *key, uint32_t max) {
    return bounded(file, key, file.require_u32(key), max);
}

int codec_eos_id(const GgufFile &file, const TalkerConfig &c) {
    if (const uint32_t own = file.u32_or("kazeia.codec.eos_id", UINT32_MAX); own != UINT32_MAX) {
        return static_cast<int>(own);
    }
    const uint32_t token = file.require_u32("tokenizer.ggml.eos_token_id");
    return static_cast<int>(token) - c.text_vocab;
}

void check_heads(const GgufFile &file, const BlockConfig &b, const char *part) {
    if (b.heads % b.kv_heads != 0) {
        fail(KZ_ERR_FORMAT, "%s: %s has %d heads, not a multiple of its %d kv heads",
             file.path().c_str(), part, b.heads, b.kv_heads);
    }
    if (b.head_dim % 2 != 0)
        fail(KZ_ERR_FORMAT, "%s: %s head size %d is odd", file.path().c_str(), part, b.head_dim);
    if (!(b.eps > 0) || !(b.rope_theta > 1)) {
        fail(KZ_ERR_FORMAT, "%s: %s has norm epsilon %g and rope base %g", file.path().c_str(),
             part, b.eps, b.rope_theta);
    }
}

// The size of each of so many heads in the rows of a matrix.
int head_size(const GgufFile &file, const std::string &name, const BlockConfig &b) {
    const int rows = file.size(name, {b.hidden, -1}, 1);
    if (rows % b.heads != 0) {
        fail(KZ_ERR_FORMAT, "%s: %s has %d rows for %d heads", file.path().c_str(), name.c_str(),
             rows, b.heads);
    }
    return rows / b.heads;
}

void grow_frame(const GgufFile &file, CodecConfig &c, int stride) {
    c.samples_per_frame *= stride;
    if (c.samples_per_frame > (1 << 16)) {
        fail(KZ_ERR_FORMAT, "%s: more than %d samples a frame", file.path().c_str(), 1 << 16);
    }
}

}  // namespace

TalkerConfig read_talker_config(const GgufFile &file) {
    const std::string arch = file.require_string("general.architecture");
    if (arch != "qwen3tts") {
        fail(KZ_ERR_FORMAT, "%s: general.architecture is '%s', expected 'qwen3tts'",
             file.path().c_str(), arch.c_str());
    }
    TalkerConfig c;
    c.layers = size_key(file, "qwen3tts.block_count", kMaxLayers);
    c.block.hidden = size_key(file, "qwen3tts.embedding_length", kMaxWidth);
    c.block.ffn = size_key(file, "qwen3tts.feed_forward_length", kMaxWidth);
    c.block.heads = size_key(file, "qwen3tts.attention.head_count", 4096);
    c.block.kv_heads = size_key(file, "qwen3tts.attention.head_count_kv", 4096);
    c.block.head_dim = size_key(file, "qwen3tts.attention.key_length", 4096);
    c.block.eps = file.require_f32("qwen3tts.attention.layer_norm_rms_epsilon");
    c.block.rope_theta = file.require_f32("qwen3tts.rope.freq_base");
    c.max_positions = size_key(file, "qwen3tts.context_length", 1u << 22);
    check_heads(file, c.block, "talker");

    const ggml_tensor *embd = file.require("token_embd.weight", {c.block.hidden, -1});
    const ggml_tensor *head = file.require("output.weight", {c.block.hidden, -1});
    c.codec_vocab = static_cast<int>(head->ne[1]);
    c.text_vocab = static_cast<int>(embd->ne[1] - head->ne[1]);
    if (c.text_vocab < 1) {
        fail(KZ_ERR_FORMAT, "%s: token_embd.weight has %lld rows, fewer than output.weight's %d",
             file.path().c_str(), static_cast<long long>(embd->ne[1]), c.codec_vocab);
    }
    c.codec_eos = codec_eos_id(file, c);
    if (c.codec_eos < 0 || c.codec_eos >= c.codec_vocab) {
        fail(KZ_ERR_FORMAT, "%s: end-of-speech id %d is outside the %d codec ids",
             file.path().c_str(), c.codec_eos, c.codec_vocab);
    }
    return c;
}

CodePredictorConfig read_code_predictor_config(const GgufFile &file, const TalkerConfig &talker) {
    const std::string arch = file.require_string("general.architecture");
    if (arch != "clip" || !file.has("a.gen.code.embd.weight")) {
        fail(KZ_ERR_FORMAT,
             "%s: not a Qwen3-TTS codec file (architecture '%s', tensor a.gen.code.embd.weight %s)",
             file.path().c_str(), arch.c_str(),
             file.has("a.gen.code.embd.weight") ? "present" : "missing");
    }
    CodePredictorConfig c;
    c.layers = size_key(file, "clip.gen.audio.block_count", kMaxLayers);
    c.block.hidden = size_key(file, "clip.gen.audio.embedding_length", kMaxWidth);
    c.block.ffn = size_key(file, "clip.gen.audio.feed_forward_length", kMaxWidth);
    c.block.heads = size_key(file, "clip.gen.audio.attention.head_count", 4096);
    c.block.kv_heads = size_key(file, "clip.gen.audio.attention.head_count_kv", 4096);
    c.block.eps = file.require_f32("clip.gen.audio.attention.layer_norm_epsilon");
    c.block.rope_theta = file.f32_or("kazeia.cp.rope_theta", 1e6f);
    c.block.head_dim = head_size(file, "a.gen.code.blk.0.attn_q.weight", c.block);
    check_heads(file, c.block, "code predictor");

    c.input_width = talker.block.hidden;
    const ggml_tensor *embd = file.require("a.gen.code.embd.weight", {c.input_width, -1, -1});
    c.codebook_size = static_cast<int>(embd->ne[1]);
    c.n_steps = static_cast<int>(embd->ne[2]);
    if (c.n_steps + 1 > KZ_N_CODEBOOKS_MAX) {
        fail(KZ_ERR_FORMAT, "%s: %d codebooks, at most %d are possible", file.path().c_str(),
             c.n_steps + 1, KZ_N_CODEBOOKS_MAX);
    }
    if (c.codebook_size > talker.codec_vocab) {
        fail(KZ_ERR_FORMAT, "%s: codebooks of %d entries, but the talker has only %d codec ids",
             file.path().c_str(), c.codebook_size, talker.codec_vocab);
    }
    c.projected = file.has("a.gen.code.proj_in.weight");
    if (!c.projected && c.block.hidden != c.input_width) {
        fail(KZ_ERR_FORMAT,
             "%s: tensor a.gen.code.proj_in.weight is missing: talker width %d, code predictor "
             "width %d",
             file.path().c_str(), c.input_width, c.block.hidden);
    }
    return c;
}

CodecConfig read_codec_config(const GgufFile &file) {
    CodecConfig c;
    const ggml_tensor *rest = file.require("a.gen.wav.quant.rest.codebook.weight", {-1, -1, -1});
    c.codebook_dim = static_cast<int>(rest->ne[0]);
    c.codebook_size = static_cast<int>(rest->ne[1]);
    c.n_codebooks = static_cast<int>(rest->ne[2]) + 1;
    file.require("a.gen.wav.quant.first.codebook.weight", {c.codebook_dim, c.codebook_size});
    c.quant_out = file.size("a.gen.wav.quant.first.out_proj.weight", {c.codebook_dim, -1}, 1);
    c.latent = file.size("a.gen.wav.pre_conv.weight", {-1, c.quant_out, -1}, 2);

    c.block.hidden = file.size("a.gen.wav.tfm.in_proj.weight", {c.latent, -1}, 1);
    c.block.heads =
        bounded(file, "kazeia.codec.heads", file.u32_or("kazeia.codec.heads", 16), 4096);
    c.block.head_dim = head_size(file, "a.gen.wav.tfm.blk.0.attn_q.weight", c.block);
    const int kv_width = file.size("a.gen.wav.tfm.blk.0.attn_k.weight", {c.block.hidden, -1}, 1);
    if (kv_width % c.block.head_dim != 0) {
        fail(KZ_ERR_FORMAT,
             "%s: a.gen.wav.tfm.blk.0.attn_k.weight has %d rows, not a multiple of the head size "
             "%d",
             file.path().c_str(), kv_width, c.block.head_dim);
    }
    c.block.kv_heads = kv_width / c.block.head_dim;
    c.block.ffn = file.size("a.gen.wav.tfm.blk.0.ffn_gate.weight", {c.block.hidden, -1}, 1);
    c.block.eps = file.f32_or("kazeia.codec.rms_eps", 1e-5f);
    c.block.rope_theta = file.f32_or("kazeia.codec.rope_theta", 1e4f);
    c.window = bounded(file, "kazeia.codec.sliding_window",
                       file.u32_or("kazeia.codec.sliding_window", 72), 4096);
    check_heads(file, c.block, "codec pre-transformer");
    while (c.layers < static_cast<int>(kMaxLayers) &&
           file.has("a.gen.wav.tfm.blk." + std::to_string(c.layers) + ".ln1.weight")) {
        c.layers++;
    }

    c.samples_per_frame = 1;
    for (int i = 0; file.has("a.gen.wav.up.blk." + std::to_string(i) + ".conv.weight"); i++) {
        const std::string p = "a.gen.wav.up.blk." + std::to_string(i);
        const ggml_tensor *conv = file.require(p + ".conv.weight", {-1, c.latent, c.latent});
        c.upsample.push_back(
            bounded(file, "up.blk kernel", static_cast<uint32_t>(conv->ne[0]), 64));
        grow_frame(file, c, c.upsample.back());
        c.upsample_ffn = file.size(p + ".pw1.weight", {c.latent, -1}, 1);
    }
    c.channels.push_back(file.size("a.gen.wav.dac.entry.weight", {-1, c.latent, -1}, 2));
    for (int i = 0; file.has("a.gen.wav.dac.blk." + std::to_string(i) + ".conv.weight"); i++) {
        const ggml_tensor *conv = file.require(
            "a.gen.wav.dac.blk." + std::to_string(i) + ".conv.weight", {-1, -1, c.channels.back()});
        if (conv->ne[0] % 2 != 0) {
            fail(KZ_ERR_FORMAT, "%s: tensor %s has kernel %lld, expected twice its stride",
                 file.path().c_str(), conv->name, static_cast<long long>(conv->ne[0]));
        }
        c.rates.push_back(
            bounded(file, "dac.blk stride", static_cast<uint32_t>(conv->ne[0] / 2), 64));
        c.channels.push_back(static_cast<int>(conv->ne[1]));
        grow_frame(file, c, c.rates.back());
    }
    if (c.layers == 0 || c.rates.empty()) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s is missing", file.path().c_str(),
             c.layers == 0 ? "a.gen.wav.tfm.blk.0.ln1.weight" : "a.gen.wav.dac.blk.0.conv.weight");
    }
    c.sample_rate = bounded(file, "kazeia.codec.sample_rate",
                            file.u32_or("kazeia.codec.sample_rate", 24000), 768000);
    if (c.sample_rate < 1000) {
        fail(KZ_ERR_FORMAT, "%s: key kazeia.codec.sample_rate is %d, expected 1000 or more",
             file.path().c_str(), c.sample_rate);
    }
    return c;
}

}  // namespace kz
