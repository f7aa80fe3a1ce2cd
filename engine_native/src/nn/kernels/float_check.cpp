// A set of kernels is compiled for processors it may never have been run on.  Before one is used it
// is compared with the scalar twin: every kernel, once, on a problem with whole and partial tiles.
#include <cmath>

#include "nn/kernels/float_kernels.h"
#include "nn/kernels/panels.h"

namespace kz {

namespace {

constexpr int kWidth = 37;  // one or more whole vectors and a rest in every set

// Values in -1 .. 1 that repeat only after hundreds.
FloatBuffer wave(size_t n, float step) {
    FloatBuffer x(n);
    for (size_t i = 0; i < n; i++) x[i] = std::sin(static_cast<float>(i + 1) * step);
    return x;
}

// Whether a is how b begins.
bool close(const FloatBuffer &a, const FloatBuffer &b) {
    bool same = a.size() <= b.size();
    for (size_t i = 0; i < a.size() && same; i++) same = std::fabs(a[i] - b[i]) <= 1e-4f;
    return same;
}

// c [rows][kWidth] of a product with two taps and weights of one type, behind the widened weights.
// Fewer rows are the beginning of more.
FloatBuffer product(const Kernels &k, WeightType type, int rows, bool accumulate) {
    constexpr int kIn = 9, kTaps = 2;
    const FloatBuffer a = wave(static_cast<size_t>(rows + kTaps) * kIn, 0.37f);
    const FloatBuffer bias = wave(kWidth, 0.71f);
    FloatBuffer c = wave(static_cast<size_t>(rows) * kWidth, 0.53f);
    constexpr size_t kValues = static_cast<size_t>(kWidth) * kIn * kTaps;
    const FloatBuffer w = wave(kValues, 0.23f);
    std::vector<uint16_t> half(kValues);
    // Any 16 bits are a weight: sign, a small exponent and the mantissa from the index.
    const uint16_t one = type == WeightType::f16 ? 0x3800 : 0x3f00;
    for (size_t i = 0; i < kValues; i++)
        half[i] = static_cast<uint16_t>((i * 0x9e37u & 0x807f) | one);
    Panels packed(k, type, kTaps * kIn, kWidth);
    packed.put(0, 0, kIn, kWidth, kTaps,
               type == WeightType::f32 ? static_cast<const void *>(w.data()) : half.data());
    k.gemm({a.data(), kIn, kIn, kTaps, kIn, packed.plane(), type, bias.data(), c.data(), kWidth,
            rows, kWidth, accumulate});
    FloatBuffer wide(kValues);
    k.widen(wide.data(),
            type == WeightType::f32 ? static_cast<const void *>(w.data()) : half.data(), type,
            static_cast<int>(kValues));
    wide.insert(wide.end(), c.begin(), c.end());
    return wide;
}

// Everything that works on one row of kWidth values, side by side.
FloatBuffer loops(const Kernels &k) {
    const FloatBuffer x = wave(kWidth, 0.9f), y = wave(kWidth, 0.41f);
    FloatBuffer all;
    const auto keep = [&](const FloatBuffer &b) { all.insert(all.end(), b.begin(), b.end()); };
    FloatBuffer out(kWidth);
    all.push_back(k.dot(x.data(), y.data(), kWidth));
    k.axpy((out = y).data(), x.data(), 0.7f, kWidth);
    keep(out);
    k.mul_add((out = y).data(), x.data(), y.data(), kWidth);
    keep(out);
    k.snake(out.data(), x.data(), y.data(), x.data(), 1, kWidth);
    keep(out);
    all.push_back(k.exp_sum((out = x).data(), 1.0f, kWidth));
    keep(out);
    k.silu_mul((out = x).data(), y.data(), kWidth);
    keep(out);
    k.rms_norm(out.data(), x.data(), y.data(), 1e-6f, kWidth);
    keep(out);
    k.layer_norm(out.data(), x.data(), y.data(), x.data(), 1e-6f, kWidth);
    keep(out);
    k.gelu((out = x).data(), kWidth);
    keep(out);
    return all;
}

FloatBuffer filtered(const Kernels &k, int outputs, int taps) {
    const MinimalFilter f = minimal_filter(outputs, taps);
    const auto points = static_cast<size_t>(f.points());
    const FloatBuffer d = wave(points * kWidth, 0.29f), bias = wave(kWidth, 0.61f);
    FloatBuffer v(points * kWidth), y(static_cast<size_t>(outputs) * kWidth);
    const float *from[MinimalFilter::kMaxPoints];
    float *to[MinimalFilter::kMaxOutputs];
    for (size_t i = 0; i < points; i++) from[i] = d.data() + i * kWidth;
    for (int i = 0; i < outputs; i++) to[i] = y.data() + i * kWidth;
    k.filter_input(f, from, v.data(), kWidth, kWidth);
    // The inputs stand for products: their transform would be too large to compare closely.
    k.filter_output(f, d.data(), kWidth, bias.data(), to, kWidth);
    for (float &x : y) x *= 1.0f / 1024;
    v.insert(v.end(), y.begin(), y.end());
    return v;
}

}  // namespace

bool computes_correctly(const Kernels &set) {
    const Kernels &twin = kernels("scalar");
    bool same = close(loops(set), loops(twin));
    for (const WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16}) {
        // Rows of whole tiles (6 or 12) and of smaller ones.
        const FloatBuffer expected = product(twin, type, 23, false);
        for (const int rows : {1, 2, 3, 4, 5, 6, 18, 23})
            same = same && close(product(set, type, rows, false), expected);
    }
    same = same &&
           close(product(set, WeightType::f32, 7, true), product(twin, WeightType::f32, 7, true));
    for (const int taps : {2, 7}) {
        for (const int outputs : {taps == 2 ? 3 : 4, taps == 2 ? 5 : 6})
            same = same && close(filtered(set, outputs, taps), filtered(twin, outputs, taps));
    }
    return same;
}

}  // namespace kz
