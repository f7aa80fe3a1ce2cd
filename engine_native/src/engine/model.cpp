#include "engine/model.h"

#include "runtime/status.h"

namespace kz {

std::unique_ptr<const Model> load_model(const std::string &talker_path,
                                        const std::string &codec_path, bool f32) {
    const GgufFile talker(talker_path);
    const GgufFile codec(codec_path);
    auto model = std::make_unique<Model>();
    model->kernels = &kernels();
    model->talker = load_talker_weights(talker, f32);
    model->cp = load_code_predictor_weights(codec, model->talker.config, f32);
    model->codec = load_codec_weights(codec, *model->kernels);
    model->codec_type = ggml_type_name(codec.require("a.gen.wav.dac.entry.weight")->type);
    if (model->cp.config.n_steps + 1 != model->codec.config.n_codebooks ||
        model->cp.config.codebook_size != model->codec.config.codebook_size) {
        fail(KZ_ERR_FORMAT, "%s: the code predictor has %d codebooks of %d, the decoder %d of %d",
             codec_path.c_str(), model->cp.config.n_steps + 1, model->cp.config.codebook_size,
             model->codec.config.n_codebooks, model->codec.config.codebook_size);
    }
    return model;
}

}  // namespace kz
