// A loaded model: everything const after load and shared by all streams.
#pragma once

#include <memory>
#include <string>

#include "model/codec/codec.h"
#include "model/lm/lm_weights.h"

namespace kz {

struct Model {
    TalkerWeights talker;
    CodePredictorWeights cp;
    Codec codec;
    const Kernels *kernels;
    std::string codec_type;  // of the codec's convolutions in the file

    int n_codebooks() const { return codec.config.n_codebooks; }
};

struct ModelOptions {
    bool f32 = false;    // everything as f32, whatever the files' types
    bool graph = false;  // the language models as ggml graphs
    // Where the parts are computed; nullptr: kernels of our own, on the processor.
    ggml_backend_dev_t talker = nullptr, cp = nullptr, decoder = nullptr;
    int max_rows = 0;  // of the decoder's products on a device; 0: any
};

// Throws Error naming the file and the key or tensor that is wrong, or the device without memory.
std::unique_ptr<const Model> load_model(const std::string &talker_path,
                                        const std::string &codec_path, const ModelOptions &options);

}  // namespace kz
