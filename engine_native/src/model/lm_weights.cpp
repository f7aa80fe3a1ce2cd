#include "model/lm_weights.h"

#include <string>

#include "runtime/status.h"

namespace kz {

namespace {

// Declares tensors, then allocates them together and fills them from the file.
class Loader {
  public:
    Loader(const GgufFile &file, ContextPtr &ctx, BufferPtr &buffer, bool f32, size_t max_tensors)
        : file_(file), ctx_(ctx), buffer_(buffer), f32_(f32) {
        ctx_.reset(ggml_init({ggml_tensor_overhead() * max_tensors, nullptr, true}));
        if (!ctx_) fail(KZ_ERR_MEMORY, "cannot allocate tensor descriptions");
    }

    ggml_tensor *matrix(const std::string &name, std::initializer_list<int64_t> ne) {
        const ggml_tensor *source = file_.require(name, ne);
        if (!ggml_get_type_traits(source->type)->to_float && source->type != GGML_TYPE_F32) {
            fail(KZ_ERR_FORMAT, "%s: tensor %s has type %s, which holds no weights",
                 file_.path().c_str(), name.c_str(), ggml_type_name(source->type));
        }
        return declare(source, f32_ ? GGML_TYPE_F32 : source->type);
    }

    ggml_tensor *vector(const std::string &name, int64_t n) {
        return declare(file_.require(name, {n}), GGML_TYPE_F32);
    }

    void fill() {
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(
            ctx_.get(), ggml_backend_dev_buffer_type(cpu_device())));
        if (!buffer_)
            fail(KZ_ERR_MEMORY, "cannot allocate the weights of %s", file_.path().c_str());
        ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        std::vector<uint8_t> raw;
        for (const auto &[source, target] : pending_) {
            if (source->type == target->type) {
                raw.resize(ggml_nbytes(source));
                file_.read(source, raw.data());
                ggml_backend_tensor_set(target, raw.data(), 0, raw.size());
            } else {
                const FloatBuffer values = file_.read_f32(source);
                ggml_backend_tensor_set(target, values.data(), 0, values.size() * sizeof(float));
            }
        }
    }

  private:
    ggml_tensor *declare(const ggml_tensor *source, ggml_type type) {
        ggml_tensor *t = ggml_new_tensor(ctx_.get(), type, GGML_MAX_DIMS, source->ne);
        pending_.emplace_back(source, t);
        return t;
    }

    const GgufFile &file_;
    ContextPtr &ctx_;
    BufferPtr &buffer_;
    bool f32_;
    std::vector<std::pair<const ggml_tensor *, ggml_tensor *>> pending_;
};

std::vector<LayerWeights> declare_layers(Loader &loader, const GgufFile &file, const BlockConfig &b,
                                         int n, const std::string &prefix, bool talker) {
    std::vector<LayerWeights> layers;
    for (int i = 0; i < n; i++) {
        const std::string p = prefix + std::to_string(i) + ".";
        LayerWeights l{};
        l.attn_norm = loader.vector(p + (talker ? "attn_norm" : "ln1") + ".weight", b.hidden);
        l.q = loader.matrix(p + "attn_q.weight", {b.hidden, b.q_width()});
        l.k = loader.matrix(p + "attn_k.weight", {b.hidden, b.kv_width()});
        l.v = loader.matrix(p + "attn_v.weight", {b.hidden, b.kv_width()});
        l.out = loader.matrix(p + (talker ? "attn_output" : "attn_out") + ".weight",
                              {b.q_width(), b.hidden});
        l.ffn_norm = loader.vector(p + (talker ? "ffn_norm" : "ln2") + ".weight", b.hidden);
        l.gate = loader.matrix(p + "ffn_gate.weight", {b.hidden, b.ffn});
        l.up = loader.matrix(p + "ffn_up.weight", {b.hidden, b.ffn});
        l.down = loader.matrix(p + "ffn_down.weight", {b.ffn, b.hidden});
        l.q_norm = file.read_f32(file.require(p + "attn_q_norm.weight", {b.head_dim}));
        l.k_norm = file.read_f32(file.require(p + "attn_k_norm.weight", {b.head_dim}));
        layers.push_back(std::move(l));
    }
    return layers;
}

}  // namespace

EmbeddingTable::EmbeddingTable(const ggml_tensor *table) : table_(table) {}

void EmbeddingTable::add_row(int64_t row, float *out, FloatBuffer &scratch) const {
    const int64_t n = table_->ne[0];
    const auto *source =
        static_cast<const char *>(table_->data) + row * static_cast<int64_t>(table_->nb[1]);
    const float *values = reinterpret_cast<const float *>(source);
    if (table_->type != GGML_TYPE_F32) {
        float *dequantised = at_least(scratch, static_cast<size_t>(n));
        ggml_get_type_traits(table_->type)->to_float(source, dequantised, n);
        values = dequantised;
    }
    for (int64_t i = 0; i < n; i++) out[i] += values[i];
}

TalkerWeights load_talker_weights(const GgufFile &file, bool f32) {
    TalkerWeights w;
    w.config = read_talker_config(file);
    const TalkerConfig &c = w.config;
    Loader loader(file, w.ctx, w.buffer, f32, static_cast<size_t>(c.layers) * 12 + 8);
    w.layers = declare_layers(loader, file, c.block, c.layers, "blk.", true);
    w.output_norm = loader.vector("output_norm.weight", c.block.hidden);
    w.head = loader.matrix("output.weight", {c.block.hidden, c.codec_vocab});
    ggml_tensor *embd =
        loader.matrix("token_embd.weight", {c.block.hidden, c.text_vocab + c.codec_vocab});
    loader.fill();
    w.embd = EmbeddingTable(embd);
    w.type = w.layers[0].q->type;
    return w;
}

CodePredictorWeights load_code_predictor_weights(const GgufFile &file, const TalkerConfig &talker,
                                                 bool f32) {
    CodePredictorWeights w;
    w.config = read_code_predictor_config(file, talker);
    const CodePredictorConfig &c = w.config;
    Loader loader(file, w.ctx, w.buffer, f32,
                  static_cast<size_t>(c.layers) * 12 + static_cast<size_t>(c.n_steps) + 8);
    w.layers = declare_layers(loader, file, c.block, c.layers, "a.gen.code.blk.", false);
    w.output_norm = loader.vector("a.gen.code.output_norm.weight", c.block.hidden);
    if (c.projected) {
        w.proj_w = loader.matrix("a.gen.code.proj_in.weight", {c.input_width, c.block.hidden});
        w.proj_b = loader.vector("a.gen.code.proj_in.bias", c.block.hidden);
    }
    ggml_tensor *heads =
        loader.matrix("a.gen.code.head.weight", {c.block.hidden, c.codebook_size, c.n_steps});
    ggml_tensor *embd =
        loader.matrix("a.gen.code.embd.weight", {c.input_width, c.codebook_size, c.n_steps});
    loader.fill();
    for (int i = 0; i < c.n_steps; i++) {
        w.heads.push_back(ggml_view_2d(w.ctx.get(), heads, heads->ne[0], heads->ne[1], heads->nb[1],
                                       static_cast<size_t>(i) * heads->nb[2]));
    }
    w.embd = EmbeddingTable(embd);
    w.type = w.layers[0].q->type;
    return w;
}

}  // namespace kz
