// The language model on matrices packed for this processor.
#pragma once

#include <optional>
#include <vector>

#include "nn/lm/attention.h"
#include "nn/lm/lm.h"
#include "nn/matrix.h"

namespace kz {

struct PackedLayer {
    FloatBuffer attn_norm, ffn_norm;  // [hidden]
    FloatBuffer q_norm, k_norm;       // [head_dim]
    Matrix qkv;                       // hidden -> q, k, v side by side
    Matrix out;                       // q_width -> hidden
    Matrix gate_up;                   // hidden -> gate, up side by side
    Matrix down;                      // ffn -> hidden
};

struct PackedWeights {
    const Kernels *kernels = nullptr;
    const QuantKernels *quant = nullptr;
    std::vector<PackedLayer> layers;
    FloatBuffer output_norm;     // [hidden]
    std::optional<Matrix> proj;  // input_width -> hidden
    FloatBuffer proj_bias;       // [hidden]
    std::vector<Matrix> heads;   // hidden -> head_size

    int64_t bytes() const;
    // The matrices of one pass with one head, in the order of their use.
    std::vector<const Matrix *> pass(int head) const;
};

class PackedLm final : public Lm {
  public:
    PackedLm(const LmConfig &config, const PackedWeights &weights, Team &team);
    bool forward(std::span<const LmSequence> sequences, int head) override;
    bool shares_passes() const override { return true; }
    bool exact_grouping() const override { return true; }

  private:
    void input(std::span<const LmSequence> sequences);
    void norm(const float *rows, const FloatBuffer &weight, int m);
    void attention(std::span<const LmSequence> sequences, int layer);
    void feed_forward(const PackedLayer &layer);
    void output(std::span<const LmSequence> sequences, int head);

    const LmConfig &config_;
    const PackedWeights &w_;
    Products products_;
    Rope rope_;
    int m_ = 0;                       // rows of this call
    std::vector<RopeAngles> angles_;  // [sequence]
    FloatBuffer x_;                   // [m][hidden], the residual stream
    FloatBuffer y_;                   // [m][joined outputs]
    Activations rows_;
};

}  // namespace kz
