#include "model/codec/codec.h"

namespace kz {

int64_t Codec::bytes() const {
    if (const auto *graph = std::get_if<CodecGraphWeights>(&form)) return graph->bytes();
    return std::get<CodecWeights>(form).bytes;
}

std::unique_ptr<DecoderState> Codec::make_state() const {
    if (std::holds_alternative<CodecGraphWeights>(form)) return CodecGraphDecoder::make_state();
    return std::make_unique<CodecState>(std::get<CodecWeights>(form));
}

std::unique_ptr<Decoder> Codec::make_decoder(Team *team, int n_threads) const {
    if (const auto *graph = std::get_if<CodecGraphWeights>(&form))
        return std::make_unique<CodecGraphDecoder>(*graph, n_threads);
    const auto &weights = std::get<CodecWeights>(form);
    return team ? std::make_unique<CodecDecoder>(weights, *team)
                : std::make_unique<CodecDecoder>(weights);
}

Codec load_codec(const GgufFile &file, const Kernels &kernels, const CodecOptions &options) {
    Codec codec;
    if (options.device) {
        CodecGraphWeights w = load_codec_graph(file, kernels, options.device, options.max_rows);
        codec.config = w.config;
        codec.form = std::move(w);
    } else {
        CodecWeights w = load_codec_weights(file, kernels, options.exact);
        codec.config = w.config;
        codec.form = std::move(w);
    }
    return codec;
}

}  // namespace kz
