// What both forms of the decoder do on the processor: codes become rows of the codebooks in front,
// and what comes out becomes samples.
#pragma once

#include "nn/tensor_values.h"
#include "weights/config.h"

namespace kz {

class Codebooks {
  public:
    Codebooks() = default;
    Codebooks(const GgufFile &file, const CodecConfig &config);

    // codes [frames][n_codebooks], in range -> rows `step` floats apart: in `first` the entries of
    // codebook 0, in `rest` the sums of the others.  entry: scratch.
    void look_up(const Kernels &kernels, const int32_t *codes, int frames, float *first,
                 float *rest, ptrdiff_t step, FloatBuffer &entry) const;
    int64_t bytes() const { return static_cast<int64_t>(first_.bytes() + rest_.bytes()); }

  private:
    int dim_ = 0, size_ = 0, n_ = 0;
    TensorValues first_;  // [size][dim]
    TensorValues rest_;   // [n - 1][size][dim]
};

// Clamps to -1..1.  Throws KZ_ERR_COMPUTE for a sample that is not finite, naming the device they
// come from, if any.
void finish_samples(float *pcm, int n, const char *device = nullptr);

}  // namespace kz
