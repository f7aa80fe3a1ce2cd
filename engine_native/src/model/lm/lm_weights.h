// Weights of the two language models, in the form that suits their types.
#pragma once

#include <variant>
#include <vector>

#include "nn/lm/device_lm.h"
#include "nn/lm/graph_lm.h"
#include "nn/lm/packed_lm.h"
#include "weights/config.h"

namespace kz {

// How to hold a language model's weights.
struct LmOptions {
    bool f32 = false;    // every matrix as f32, whatever the file's type
    bool graph = false;  // as ggml graphs, even where packed kernels exist
    const Kernels *kernels = nullptr;
    const QuantKernels *quant = nullptr;
    ggml_backend_dev_t device = nullptr;  // where to compute; nullptr: here, as the others say
};

// Rows of a table, any weight type, read as f32.
class EmbeddingTable {
  public:
    EmbeddingTable() = default;
    // tensor [width, rows] or [width, rows, n], row after row
    EmbeddingTable(const GgufFile &file, const ggml_tensor *tensor);
    // out [width] += row
    void add_row(int64_t row, float *out, FloatBuffer &scratch) const;
    int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

  private:
    ggml_type type_ = GGML_TYPE_F32;
    int64_t width_ = 0;
    size_t row_bytes_ = 0;
    ByteBuffer data_;
};

struct LmWeights {
    LmConfig config;
    std::variant<PackedWeights, LmGraphWeights> form;
    ggml_type type = GGML_TYPE_F32;  // of the first attention matrix, as it is held
    const Kernels *kernels = nullptr;

    // Whether kernels of our own multiply; they share their work by a Team.
    bool packed() const { return std::holds_alternative<PackedWeights>(form); }
    // Whether ggml computes on the processor, with threads of its own.
    bool brings_threads() const {
        return !packed() && std::get<LmGraphWeights>(form).on_processor();
    }

    int64_t bytes() const {
        return std::visit([](const auto &w) { return w.bytes(); }, form);
    }
};

// Computes; one per thread.  n_threads: of ggml, for graphs.
std::unique_ptr<Lm> make_lm(const LmWeights &weights, Team &team, int n_threads);

struct TalkerWeights {
    TalkerConfig config;
    LmWeights lm;
    EmbeddingTable embd;  // [text_vocab + codec_vocab][hidden]

    // Row of a codec id in embd.
    int64_t codec_row(int id) const { return static_cast<int64_t>(config.text_vocab) + id; }
};

struct CodePredictorWeights {
    CodePredictorConfig config;
    LmWeights lm;         // n_steps heads
    EmbeddingTable embd;  // [n_steps * codebook_size][talker hidden]

    int64_t row(int step, int code) const {
        return static_cast<int64_t>(step) * config.codebook_size + code;
    }
};

TalkerWeights load_talker_weights(const GgufFile &file, const LmOptions &options);
CodePredictorWeights load_code_predictor_weights(const GgufFile &file, const TalkerConfig &talker,
                                                 const LmOptions &options);

}  // namespace kz
