#include "model/lm/lm_weights.h"

#include <algorithm>
#include <string>

#include "runtime/status.h"

namespace kz {

namespace {

// The tensors of a language model in a file, shapes checked.
struct LmTensors {
    struct Layer {
        const ggml_tensor *attn_norm, *q, *k, *v, *out, *q_norm, *k_norm;
        const ggml_tensor *ffn_norm, *gate, *up, *down;
    };
    std::vector<Layer> layers;
    const ggml_tensor *output_norm = nullptr, *proj_w = nullptr, *proj_b = nullptr;
    const ggml_tensor *head = nullptr;  // [hidden, head_size] or [hidden, head_size, n]

    std::vector<const ggml_tensor *> matrices() const {
        std::vector<const ggml_tensor *> all{head};
        if (proj_w) all.push_back(proj_w);
        for (const Layer &l : layers)
            all.insert(all.end(), {l.q, l.k, l.v, l.out, l.gate, l.up, l.down});
        return all;
    }
};

const ggml_tensor *require_matrix(const GgufFile &file, const std::string &name,
                                  std::initializer_list<int64_t> ne) {
    const ggml_tensor *t = file.require(name, ne);
    if (!ggml_get_type_traits(t->type)->to_float && t->type != GGML_TYPE_F32) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s has type %s, which holds no weights",
             file.path().c_str(), name.c_str(), ggml_type_name(t->type));
    }
    return t;
}

std::vector<LmTensors::Layer> find_layers(const GgufFile &f, const BlockConfig &b, int n,
                                          const std::string &prefix, bool talker) {
    std::vector<LmTensors::Layer> layers;
    for (int i = 0; i < n; i++) {
        const std::string p = prefix + std::to_string(i) + ".";
        const auto matrix = [&](const char *name, int in, int out) {
            return require_matrix(f, p + name + ".weight", {in, out});
        };
        LmTensors::Layer l{};
        l.attn_norm = f.require(p + (talker ? "attn_norm" : "ln1") + ".weight", {b.hidden});
        l.q = matrix("attn_q", b.hidden, b.q_width());
        l.k = matrix("attn_k", b.hidden, b.kv_width());
        l.v = matrix("attn_v", b.hidden, b.kv_width());
        l.out = matrix(talker ? "attn_output" : "attn_out", b.q_width(), b.hidden);
        l.q_norm = f.require(p + "attn_q_norm.weight", {b.head_dim});
        l.k_norm = f.require(p + "attn_k_norm.weight", {b.head_dim});
        l.ffn_norm = f.require(p + (talker ? "ffn_norm" : "ln2") + ".weight", {b.hidden});
        l.gate = matrix("ffn_gate", b.hidden, b.ffn);
        l.up = matrix("ffn_up", b.hidden, b.ffn);
        l.down = matrix("ffn_down", b.ffn, b.hidden);
        layers.push_back(l);
    }
    return layers;
}

// Matrices joined into one must share a type; all must be of a type our kernels know.
bool can_pack(const LmTensors &t, const LmOptions &options) {
    if (options.graph) return false;
    if (options.f32) return true;
    const auto matrices = t.matrices();
    return std::all_of(matrices.begin(), matrices.end(),
                       [](const ggml_tensor *m) { return packable(m->type, m->ne[0]); }) &&
           std::all_of(t.layers.begin(), t.layers.end(), [](const LmTensors::Layer &l) {
               return l.q->type == l.k->type && l.q->type == l.v->type &&
                      l.gate->type == l.up->type;
           });
}

PackedWeights pack(const GgufFile &f, const LmTensors &t, const LmOptions &options) {
    const auto matrix = [&](const std::vector<const ggml_tensor *> &parts) {
        return read_matrix(f, parts, options.f32, *options.kernels, *options.quant);
    };
    PackedWeights w;
    w.kernels = options.kernels;
    w.quant = options.quant;
    for (const LmTensors::Layer &l : t.layers) {
        PackedLayer p;
        p.attn_norm = f.read_f32(l.attn_norm);
        p.ffn_norm = f.read_f32(l.ffn_norm);
        p.q_norm = f.read_f32(l.q_norm);
        p.k_norm = f.read_f32(l.k_norm);
        p.qkv = matrix({l.q, l.k, l.v});
        p.out = matrix({l.out});
        p.gate_up = matrix({l.gate, l.up});
        p.down = matrix({l.down});
        w.layers.push_back(std::move(p));
    }
    w.output_norm = f.read_f32(t.output_norm);
    if (t.proj_w) {
        w.proj = matrix({t.proj_w});
        w.proj_bias = f.read_f32(t.proj_b);
    }
    w.heads = read_matrix_slices(f, t.head, options.f32, *options.kernels, *options.quant);
    return w;
}

// The bytes of a tensor, as a device is to have them.
std::vector<uint8_t> read_as(const GgufFile &f, const ggml_tensor *source, ggml_type type) {
    if (type == source->type) {
        std::vector<uint8_t> raw(ggml_nbytes(source));
        f.read(source, raw.data());
        return raw;
    }
    const FloatBuffer values = f.read_f32(source);
    const auto *bytes = reinterpret_cast<const uint8_t *>(values.data());
    return {bytes, bytes + values.size() * sizeof(float)};
}

PlacedTensors::Fill upload(const GgufFile &f, const ggml_tensor *source) {
    return [&f, source](ggml_tensor *to) {
        const auto bytes = read_as(f, source, to->type);
        ggml_backend_tensor_set(to, bytes.data(), 0, bytes.size());
    };
}

LmGraphWeights load_graph(const GgufFile &f, const LmConfig &config, const LmTensors &t,
                          const LmOptions &options) {
    LmGraphWeights w;
    w.device = options.device;
    const int64_t n_heads = t.head->ne[2];
    w.tensors =
        std::make_unique<PlacedTensors>(t.layers.size() * 12 + static_cast<size_t>(n_heads) + 8);
    const auto matrix = [&](const ggml_tensor *source) {
        return w.tensors->add(source->name, options.f32 ? GGML_TYPE_F32 : source->type,
                              {source->ne[0], source->ne[1]}, upload(f, source));
    };
    const auto vector = [&](const ggml_tensor *source) {
        return w.tensors->add(source->name, GGML_TYPE_F32, {source->ne[0]}, upload(f, source));
    };
    for (const LmTensors::Layer &l : t.layers) {
        w.layers.push_back({vector(l.attn_norm), matrix(l.q), matrix(l.k), matrix(l.v),
                            vector(l.q_norm), vector(l.k_norm), matrix(l.out), vector(l.ffn_norm),
                            matrix(l.gate), matrix(l.up), matrix(l.down)});
    }
    w.output_norm = vector(t.output_norm);
    if (t.proj_w) {
        w.proj_w = matrix(t.proj_w);
        w.proj_b = vector(t.proj_b);
    }
    // Slices of one tensor, which is read once.
    auto all = std::make_shared<std::vector<uint8_t>>();
    for (int64_t i = 0; i < n_heads; i++) {
        w.heads.push_back(w.tensors->add(
            std::string(t.head->name) + "." + std::to_string(i),
            options.f32 ? GGML_TYPE_F32 : t.head->type, {t.head->ne[0], t.head->ne[1]},
            [&f, &t, all, i](ggml_tensor *to) {
                if (all->empty()) *all = read_as(f, t.head, to->type);
                const size_t bytes = ggml_nbytes(to);
                ggml_backend_tensor_set(to, all->data() + static_cast<size_t>(i) * bytes, 0, bytes);
            }));
    }
    if (w.device) {
        DeviceLm::place(config, w);
    } else {
        w.tensors->place(cpu_device(), {}, true);
    }
    return w;
}

LmWeights load_lm(const GgufFile &f, const LmConfig &config, const LmTensors &t,
                  const LmOptions &options) {
    LmWeights w;
    w.config = config;
    w.type = options.f32 ? GGML_TYPE_F32 : t.layers[0].q->type;
    w.kernels = options.kernels;
    if (!options.device && can_pack(t, options)) {
        w.form = pack(f, t, options);
    } else {
        w.form = load_graph(f, config, t, options);
    }
    return w;
}

}  // namespace

EmbeddingTable::EmbeddingTable(const GgufFile &file, const ggml_tensor *tensor)
    : type_(tensor->type),
      width_(tensor->ne[0]),
      row_bytes_(tensor->nb[1]),
      data_(ggml_nbytes(tensor)) {
    file.read(tensor, data_.data());
}

void EmbeddingTable::add_row(int64_t row, float *out, FloatBuffer &scratch) const {
    const uint8_t *source = data_.data() + static_cast<size_t>(row) * row_bytes_;
    const float *values = reinterpret_cast<const float *>(source);
    if (type_ != GGML_TYPE_F32) {
        float *dequantised = at_least(scratch, static_cast<size_t>(width_));
        ggml_get_type_traits(type_)->to_float(source, dequantised, width_);
        values = dequantised;
    }
    for (int64_t i = 0; i < width_; i++) out[i] += values[i];
}

std::unique_ptr<Lm> make_lm(const LmWeights &w, Team &team, int n_threads) {
    if (const auto *packed = std::get_if<PackedWeights>(&w.form))
        return std::make_unique<PackedLm>(w.config, *packed, team);
    const auto &graph = std::get<LmGraphWeights>(w.form);
    if (graph.device) return std::make_unique<DeviceLm>(w.config, graph, n_threads);
    return std::make_unique<GraphLm>(w.config, graph, *w.kernels, n_threads);
}

TalkerWeights load_talker_weights(const GgufFile &f, const LmOptions &options) {
    TalkerWeights w;
    w.config = read_talker_config(f);
    const TalkerConfig &c = w.config;
    LmTensors t;
    t.layers = find_layers(f, c.block, c.layers, "blk.", true);
    t.output_norm = f.require("output_norm.weight", {c.block.hidden});
    t.head = require_matrix(f, "output.weight", {c.block.hidden, c.codec_vocab});
    w.lm = load_lm(f, {c.block, c.layers, c.block.hidden, c.codec_vocab}, t, options);
    w.embd = EmbeddingTable(
        f, require_matrix(f, "token_embd.weight", {c.block.hidden, c.text_vocab + c.codec_vocab}));
    return w;
}

CodePredictorWeights load_code_predictor_weights(const GgufFile &f, const TalkerConfig &talker,
                                                 const LmOptions &options) {
    CodePredictorWeights w;
    w.config = read_code_predictor_config(f, talker);
    const CodePredictorConfig &c = w.config;
    LmTensors t;
    t.layers = find_layers(f, c.block, c.layers, "a.gen.code.blk.", false);
    t.output_norm = f.require("a.gen.code.output_norm.weight", {c.block.hidden});
    if (c.projected) {
        t.proj_w = require_matrix(f, "a.gen.code.proj_in.weight", {c.input_width, c.block.hidden});
        t.proj_b = f.require("a.gen.code.proj_in.bias", {c.block.hidden});
    }
    t.head =
        require_matrix(f, "a.gen.code.head.weight", {c.block.hidden, c.codebook_size, c.n_steps});
    w.lm = load_lm(f, {c.block, c.layers, c.input_width, c.codebook_size}, t, options);
    w.embd = EmbeddingTable(f, require_matrix(f, "a.gen.code.embd.weight",
                                              {c.input_width, c.codebook_size, c.n_steps}));
    return w;
}

}  // namespace kz
