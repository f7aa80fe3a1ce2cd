// Hyper-parameters of the three networks, read from the model's files and checked.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/gguf_file.h"

namespace kz {

struct BlockConfig {
    int hidden = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int ffn = 0;
    float eps = 0;
    float rope_theta = 0;

    int q_width() const { return heads * head_dim; }
    int kv_width() const { return kv_heads * head_dim; }
};

struct TalkerConfig {
    BlockConfig block;
    int layers = 0;
    int text_vocab = 0;   // rows of the folded text table
    int codec_vocab = 0;  // rows of codec_embedding and codec_head
    int codec_eos = 0;    // codec id
    int max_positions = 0;
};

struct CodePredictorConfig {
    BlockConfig block;
    int layers = 0;
    int n_steps = 0;        // 15: codebooks beyond the first
    int codebook_size = 0;  // 2048
    int input_width = 0;    // talker hidden
    bool projected = false;
};

// Of the three residual units of a DAC block.
inline constexpr int kDilations[3] = {1, 3, 9};

struct CodecConfig {
    BlockConfig block;  // of the pre-transformer
    int layers = 0;
    int window = 0;  // keys a position sees, itself included
    int n_codebooks = 0;
    int codebook_size = 0;
    int codebook_dim = 0;       // 256
    int quant_out = 0;          // 512
    int latent = 0;             // 1024
    std::vector<int> upsample;  // strides of the ConvNeXt stages: 2, 2
    int upsample_ffn = 0;       // 4096
    std::vector<int> rates;     // strides of the DAC blocks: 8, 5, 4, 3
    std::vector<int> channels;  // 1536, 768, 384, 192, 96
    int sample_rate = 0;
    int samples_per_frame = 0;
};

TalkerConfig read_talker_config(const GgufFile &talker);
CodePredictorConfig read_code_predictor_config(const GgufFile &codec, const TalkerConfig &talker);
CodecConfig read_codec_config(const GgufFile &codec);

}  // namespace kz
