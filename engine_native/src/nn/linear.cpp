#include "nn/linear.h"

#include <algorithm>
#include <vector>

#include "nn/tensor_values.h"

namespace kz {

void Linear::run(const Compute &c, const float *x, float *y, int t, bool accumulate,
                 ptrdiff_t x_row) const {
    c.gemm({x, x_row ? x_row : in, 0, 1, in, w.plane(), w.type(),
            bias.empty() ? nullptr : bias.data(), y, out, t, out, accumulate});
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

}  // namespace kz
