// Weights of the two language models, resident on a ggml device.
#pragma once

#include <vector>

#include "nn/transformer.h"
#include "weights/config.h"

namespace kz {

// Rows of a table kept on the host, any weight type, read as f32.
class EmbeddingTable {
  public:
    EmbeddingTable() = default;
    explicit EmbeddingTable(const ggml_tensor *table);
    // out [width] += row
    void add_row(int64_t row, float *out, FloatBuffer &scratch) const;

  private:
    const ggml_tensor *table_ = nullptr;
};

struct TalkerWeights {
    TalkerConfig config;
    std::vector<LayerWeights> layers;
    ggml_tensor *output_norm = nullptr;  // [hidden]
    ggml_tensor *head = nullptr;         // [hidden, codec_vocab]
    EmbeddingTable embd;                 // [text_vocab + codec_vocab][hidden]
    ContextPtr ctx;
    BufferPtr buffer;
    ggml_type type = GGML_TYPE_F32;

    // Row of a codec id in embd.
    int64_t codec_row(int id) const { return static_cast<int64_t>(config.text_vocab) + id; }
};

struct CodePredictorWeights {
    CodePredictorConfig config;
    std::vector<LayerWeights> layers;
    ggml_tensor *output_norm = nullptr;  // [hidden]
    ggml_tensor *proj_w = nullptr,
                *proj_b =
                    nullptr;  // [talker hidden, hidden], [hidden]; null when the widths are equal
    std::vector<ggml_tensor *> heads;  // n_steps x [hidden, codebook_size]
    EmbeddingTable embd;               // [n_steps * codebook_size][talker hidden]
    ContextPtr ctx;
    BufferPtr buffer;
    ggml_type type = GGML_TYPE_F32;

    int64_t row(int step, int code) const {
        return static_cast<int64_t>(step) * config.codebook_size + code;
    }
};

TalkerWeights load_talker_weights(const GgufFile &file, bool f32);
CodePredictorWeights load_code_predictor_weights(const GgufFile &file, const TalkerConfig &talker,
                                                 bool f32);

}  // namespace kz
