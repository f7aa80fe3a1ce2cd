// The codec decoder's weights in the form that the chosen device computes with.
#pragma once

#include <variant>

#include "model/codec/graph_decoder.h"
#include "model/codec/kernel_decoder.h"

namespace kz {

struct Codec {
    CodecConfig config;
    std::variant<KernelWeights, GraphWeights> form;
    int64_t bytes() const;
    // Whether kernels of our own compute; they share their work by a Team.
    bool shares() const { return std::holds_alternative<KernelWeights>(form); }

    std::unique_ptr<DecoderState> make_state() const;
    // team: whose helpers share the work of our own kernels, nullptr: none.  n_threads: of ggml.
    std::unique_ptr<Decoder> make_decoder(Team *team, int n_threads) const;
};

// How to hold and compute the decoder.
struct CodecOptions {
    bool exact = false;                   // our kernels without minimal filters
    ggml_backend_dev_t device = nullptr;  // nullptr: our kernels
    int max_rows = 0;                     // of a product on the device; 0: any
};

Codec load_codec(const GgufFile &file, const Kernels &kernels, const CodecOptions &options);

}  // namespace kz
