#include "model/model.h"

#include <future>

#include "runtime/status.h"

namespace kz {

std::unique_ptr<const Model> load_model(const std::string &talker_path,
                                        const std::string &codec_path,
                                        const ModelOptions &options) {
    const GgufFile talker(talker_path);
    const GgufFile codec(codec_path);
    auto model = std::make_unique<Model>();
    model->kernels = &kernels();
    LmOptions lm{options.f32, options.graph, model->kernels, &quant_kernels(), options.talker};
    for (ggml_backend_dev_t device : {options.talker, options.cp, options.decoder})
        start_device(device);
    // The two files at the same time.
    auto rest = std::async(std::launch::async, [&] {
        model->codec =
            load_codec(codec, *model->kernels, {options.f32, options.decoder, options.max_rows});
    });
    model->talker = load_talker_weights(talker, lm);
    lm.device = options.cp;
    model->cp = load_code_predictor_weights(codec, model->talker.config, lm);
    rest.get();
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
