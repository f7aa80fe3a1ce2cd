#include "nn/matrix.h"

#include <algorithm>
#include <cstring>

#include "nn/tensor_values.h"

namespace kz {

namespace {

int integer_bits(ggml_type type) {
    return type == GGML_TYPE_Q8_0 ? 8 : type == GGML_TYPE_Q4_0 ? 4 : 0;
}

Matrix pack_integers(const uint8_t *rows, int bits, int in, int out, const QuantKernels &quant) {
    Matrix m{in, out, bits, {}, {}};
    m.packed.resize(static_cast<size_t>(quant.layout.panels(out)) *
                    quant.layout.panel_bytes(bits, in));
    pack_quant(quant.layout, bits, rows, in, out, m.packed.data());
    return m;
}

}  // namespace

bool packable(ggml_type type, int64_t in) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (integer_bits(type) != 0 && in % kQuantBlock == 0);
}

Matrix read_matrix(const GgufFile &file, const std::vector<const ggml_tensor *> &parts, bool f32,
                   const Kernels &kernels, const QuantKernels &quant) {
    const auto in = static_cast<int>(parts[0]->ne[0]);
    const int bits = f32 ? 0 : integer_bits(parts[0]->type);
    int out = 0;
    size_t size = 0;
    std::vector<MatrixPart> names;
    for (const ggml_tensor *t : parts) {
        names.push_back({t->name, in, static_cast<int>(t->ne[1]), 0, out});
        out += static_cast<int>(t->ne[1]);
        size += ggml_nbytes(t);
    }
    if (bits == 0) {
        return {in, out, 0, {}, read_joined(file, kernels, in, out, names, 1)};
    }
    RawBuffer rows(size);
    size_t at = 0;
    for (const ggml_tensor *t : parts) {
        file.read(t, rows.data() + at);
        at += ggml_nbytes(t);
    }
    return pack_integers(reinterpret_cast<const uint8_t *>(rows.data()), bits, in, out, quant);
}

std::vector<Matrix> read_matrix_slices(const GgufFile &file, const ggml_tensor *tensor, bool f32,
                                       const Kernels &kernels, const QuantKernels &quant) {
    const auto in = static_cast<int>(tensor->ne[0]), out = static_cast<int>(tensor->ne[1]);
    const auto n = static_cast<size_t>(tensor->ne[2]);
    const int bits = f32 ? 0 : integer_bits(tensor->type);
    std::vector<Matrix> slices(n);
    if (bits != 0) {
        RawBuffer rows(ggml_nbytes(tensor));
        file.read(tensor, rows.data());
        const auto *first = reinterpret_cast<const uint8_t *>(rows.data());
        for (size_t i = 0; i < n; i++)
            slices[i] = pack_integers(first + i * tensor->nb[2], bits, in, out, quant);
        return slices;
    }
    const TensorValues values(file, tensor, true);
    const size_t size = static_cast<size_t>(in) * static_cast<size_t>(out);
    for (size_t i = 0; i < n; i++) {
        slices[i] = {in, out, 0, {}, {in, out, Panels(kernels, values.type(), in, out), {}}};
        slices[i].floats.w.put(0, 0, in, out, 1, values.data(i * size));
    }
    return slices;
}

float *Activations::reset(int m, int n) {
    m_ = m;
    n_ = n;
    rounded_ = false;
    return at_least(x_, static_cast<size_t>(m) * static_cast<size_t>(n));
}

void Activations::round(const QuantKernels &quant) {
    if (rounded_) return;
    rounded_ = true;
    const auto m = static_cast<size_t>(m_), n = static_cast<size_t>(n_), blocks = n / kQuantBlock;
    if (q_.size() < m * n) q_.resize(m * n);
    at_least(scale_, m * blocks);
    if (total_.size() < m * blocks) total_.resize(m * blocks);
    for (size_t i = 0; i < m; i++) {
        quant.round_row(x_.data() + i * n, n_, q_.data() + i * n, scale_.data() + i * blocks,
                        total_.data() + i * blocks);
    }
}

void Products::run(const Matrix &w, Activations &rows, float *c, bool accumulate) {
    if (w.bits == 0) {
        w.floats.run(compute_, rows.x_.data(), c, rows.rows(), accumulate);
        return;
    }
    // Pieces are small: every helper must be done before the next product can begin.
    constexpr int kTile = 4;             // panels that the kernels take together
    constexpr int64_t kGrain = 1 << 17;  // products a piece
    rows.round(quant_);
    const int panels = quant_.layout.panels(w.out), tiles = (panels + kTile - 1) / kTile;
    const int64_t tile_work =
        static_cast<int64_t>(kTile) * quant_.layout.outputs * w.in * rows.rows();
    compute_.share(tiles, static_cast<int>(kGrain / tile_work), [&](int first, int last) {
        const QuantGemmArgs args{{rows.q_.data(), rows.scale_.data(), rows.total_.data()},
                                 rows.rows(),
                                 w.in,
                                 w.packed.data(),
                                 c,
                                 w.out,
                                 w.out,
                                 first * kTile,
                                 std::min(last * kTile, panels),
                                 accumulate};
        (w.bits == 8 ? quant_.gemm8 : quant_.gemm4)(args);
    });
}

}  // namespace kz
