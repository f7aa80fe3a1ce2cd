// The decoder's weights, packed for kernels of our own.
#pragma once

#include <vector>

#include "model/codec/codebooks.h"
#include "nn/conv/convolution.h"
#include "nn/linear.h"
#include "weights/config.h"

namespace kz {

struct PreTransformerLayer {
    FloatBuffer attn_norm, ffn_norm;    // [hidden]
    FloatBuffer attn_scale, ffn_scale;  // [hidden], LayerScale
    Linear qkv;                         // hidden -> q, k, v side by side
    Linear out, gate_up, down;
};

struct UpsampleStage {
    CausalConv conv;  // transposed
    DepthwiseConv dwconv;
    FloatBuffer norm_w, norm_b;  // [latent]
    Linear pw1, pw2;
    FloatBuffer gamma;  // [latent]
};

struct ResidualUnit {
    Snake act1, act2;
    CausalConv conv1;
    Linear conv2;
};

struct DacBlock {
    Snake snake;
    CausalConv conv;  // transposed
    int rate;
    ResidualUnit res[3];
};

struct KernelWeights {
    CodecConfig config;
    const Kernels *kernels = nullptr;
    Codebooks codebooks;
    Linear quant_out;  // [first ; rest] 2 * codebook_dim -> quant_out
    CausalConv pre_conv;
    Linear in_proj, out_proj;
    std::vector<PreTransformerLayer> layers;
    FloatBuffer output_norm;  // [hidden]
    std::vector<UpsampleStage> upsample;
    CausalConv entry;
    std::vector<DacBlock> blocks;
    Snake post_snake;
    CausalConv post_conv;
    int64_t bytes = 0;
};

// exact: direct products only, the oracle of the minimal filters.
KernelWeights load_kernel_weights(const GgufFile &file, const Kernels &kernels, bool exact);

}  // namespace kz
