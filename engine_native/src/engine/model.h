// A loaded model: everything const after load and shared by all streams.
#pragma once

#include <memory>
#include <string>

#include "model/codec_decoder.h"
#include "model/lm_weights.h"

namespace kz {

struct Model {
    TalkerWeights talker;
    CodePredictorWeights cp;
    CodecWeights codec;
    const Kernels *kernels;
    std::string codec_type;  // of the codec's convolutions in the file

    int n_codebooks() const { return codec.config.n_codebooks; }
};

// f32: everything as f32, whatever the files' types.  graph: the language models as ggml graphs.
// Throws Error naming the file and the key or tensor that is wrong.
std::unique_ptr<const Model> load_model(const std::string &talker_path,
                                        const std::string &codec_path, bool f32,
                                        bool graph = false);

}  // namespace kz
