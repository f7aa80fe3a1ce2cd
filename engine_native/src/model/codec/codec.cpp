#include "model/codec/codec.h"

namespace kz {

int64_t Codec::bytes() const {
    if (const auto *graph = std::get_if<GraphWeights>(&form)) return graph->bytes();
    return std::get<KernelWeights>(form).bytes;
}

std::unique_ptr<DecoderState> Codec::make_state() const {
    if (std::holds_alternative<GraphWeights>(form)) return GraphDecoder::make_state();
    return std::make_unique<KernelState>(std::get<KernelWeights>(form));
}

std::unique_ptr<Decoder> Codec::make_decoder(Team *team, int n_threads) const {
    if (const auto *graph = std::get_if<GraphWeights>(&form))
        return std::make_unique<GraphDecoder>(*graph, n_threads);
    const auto &weights = std::get<KernelWeights>(form);
    return team ? std::make_unique<KernelDecoder>(weights, *team)
                : std::make_unique<KernelDecoder>(weights);
}

Codec load_codec(const GgufFile &file, const Kernels &kernels, const CodecOptions &options) {
    Codec codec;
    if (options.device) {
        GraphWeights w = load_graph_weights(file, kernels, options.device, options.max_rows);
        codec.config = w.config;
        codec.form = std::move(w);
    } else {
        KernelWeights w = load_kernel_weights(file, kernels, options.exact);
        codec.config = w.config;
        codec.form = std::move(w);
    }
    return codec;
}

}  // namespace kz
