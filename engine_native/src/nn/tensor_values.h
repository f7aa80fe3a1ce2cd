// The values of a tensor as a layer takes them: in 16 bits where that loses nothing, else f32.
#pragma once

#include "nn/kernels/panels.h"
#include "weights/gguf_file.h"

namespace kz {

// Up to so many steps a frame a product waits for its weights: 16-bit ones are half of that.  With
// more, widening them again and again costs more than reading them.
constexpr int kFewRows = 8;

class TensorValues {
  public:
    TensorValues() = default;
    // narrow: f16 and bf16 values stay as they are, and f32 values that are all f16 or all bf16
    // numbers become those (files hold rounded weights in f32 where another program wants that);
    // everything else becomes f32.  Throws KZ_ERR_FORMAT for an f16 value that is not finite.
    TensorValues(const GgufFile &f, const ggml_tensor *t, bool narrow);

    WeightType type() const { return type_; }
    // From value i on.
    const void *data(size_t i = 0) const { return data_.data() + i * weight_size(type_); }
    size_t bytes() const { return data_.size(); }

  private:
    void narrow_f32(size_t n);

    WeightType type_ = WeightType::f32;
    RawBuffer data_;
};

FloatBuffer read_vector(const GgufFile &f, const std::string &name, int n);

}  // namespace kz
