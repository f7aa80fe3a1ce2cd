#include "nn/conv/layers.h"

#include <algorithm>
#include <vector>

#include "nn/tensor_values.h"

namespace kz {

void Linear::run(const Compute &c, const float *x, float *y, int t, bool accumulate,
                 ptrdiff_t x_row) const {
    c.gemm({x, x_row ? x_row : in, 0, 1, in, w.plane(), w.type(),
            bias.empty() ? nullptr : bias.data(), y, out, t, out, accumulate});
}

void DepthwiseConv::run(const Kernels &k, const float *padded_x, float *y, int t) const {
    for (int i = 0; i < t; i++, y += channels) {
        std::copy_n(bias.data(), channels, y);
        for (int tap = 0; tap < taps; tap++) {
            k.mul_add(y, padded_x + static_cast<size_t>(i + tap) * channels,
                      w.data() + static_cast<size_t>(tap) * channels, channels);
        }
    }
}

Linear read_joined(const GgufFile &f, const Kernels &k, int in, int out,
                   const std::vector<MatrixPart> &parts, int rows) {
    Linear l;
    l.in = in;
    l.out = out;
    std::vector<TensorValues> values;
    bool same = true;
    for (const MatrixPart &p : parts) {
        values.emplace_back(f, f.require(p.name, {p.in, p.out}), rows <= kFewRows);
        same = same && values.back().type() == values.front().type();
    }
    l.w = Panels(k, same ? values.front().type() : WeightType::f32, in, out);
    for (size_t i = 0; i < parts.size(); i++) {
        const MatrixPart &p = parts[i];
        if (!same) values[i] = TensorValues(f, f.require(p.name), false);
        l.w.put(p.row, p.column, p.in, p.out, 1, values[i].data());
    }
    return l;
}

Linear read_linear(const GgufFile &f, const Kernels &k, const std::string &weight,
                   const std::string &bias, int in, int out, int rows) {
    Linear l = read_joined(f, k, in, out, {{weight, in, out}}, rows);
    if (!bias.empty()) l.bias = read_vector(f, bias, out);
    return l;
}

DepthwiseConv read_depthwise_conv(const GgufFile &f, const std::string &name, int channels) {
    DepthwiseConv c;
    c.channels = channels;
    const ggml_tensor *t = f.require(name + ".weight", {-1, 1, channels});
    c.taps = static_cast<int>(t->ne[0]);
    const FloatBuffer w = f.read_f32(t);  // [channels][taps]
    c.w.resize(w.size());
    for (int i = 0; i < channels; i++) {
        for (int tap = 0; tap < c.taps; tap++)
            c.w[static_cast<size_t>(tap) * channels + i] = w[static_cast<size_t>(i) * c.taps + tap];
    }
    c.bias = read_vector(f, name + ".bias", channels);
    return c;
}

}  // namespace kz
