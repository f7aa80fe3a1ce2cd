// Weight matrices packed for the kernels of this processor, and their products shared by a team.
#pragma once

#include <vector>

#include "nn/kernels/quant_kernels.h"
#include "nn/linear.h"

namespace kz {

using ByteBuffer = std::vector<uint8_t, AlignedAllocator<uint8_t>>;

// y [out] = W x [in]
struct Matrix {
    int in = 0, out = 0;
    int bits = 0;       // of integers in `packed`; 0: floats
    ByteBuffer packed;  // see QuantLayout
    Linear floats;

    size_t bytes() const { return packed.size() + floats.w.bytes(); }
};

// Whether a matrix of this type and input width can be packed.
bool packable(ggml_type type, int64_t in);

// Matrices of one type and input width, [in, out] each, as one; f32: not as integers, whatever the
// file's type.
Matrix read_matrix(const GgufFile &file, const std::vector<const ggml_tensor *> &parts, bool f32,
                   const Kernels &kernels, const QuantKernels &quant);
// The n matrices of a tensor [in, out, n].
std::vector<Matrix> read_matrix_slices(const GgufFile &file, const ggml_tensor *tensor, bool f32,
                                       const Kernels &kernels, const QuantKernels &quant);

// Rows to multiply, rounded to 16 bits when they first meet an integer matrix.
class Activations {
  public:
    // [m][n]; written by the caller between reset() and the first product.
    float *reset(int m, int n);
    const float *values() const { return x_.data(); }
    int rows() const { return m_; }
    int width() const { return n_; }

  private:
    friend class Products;
    void round(const QuantKernels &quant);

    int m_ = 0, n_ = 0;
    bool rounded_ = false;
    FloatBuffer x_, scale_;
    std::vector<int16_t, AlignedAllocator<int16_t>> q_;
    std::vector<int32_t> total_;
};

// Multiplies on behalf of one thread and its team.  A result depends on neither the number of rows
// nor the number of threads.
class Products {
  public:
    Products(const Kernels &kernels, const QuantKernels &quant, Team &team)
        : compute_{kernels, team}, quant_(quant) {}
    // c [m][matrix.out] (+)= rows
    void run(const Matrix &matrix, Activations &rows, float *c, bool accumulate);
    Team &team() { return compute_.team; }

  private:
    const Compute compute_;
    const QuantKernels &quant_;
};

}  // namespace kz
