#include "nn/layers.h"

#include <algorithm>

#include "runtime/status.h"

namespace kz {

void Linear::run(const Kernels &k, const float *x, float *y, int t, bool accumulate) const {
    k.gemm({x, in, 0, 1, in, w.data(), bias.empty() ? nullptr : bias.data(), y, out, t, out,
            accumulate});
}

void keep_context(const float *padded, float *left, int rows, int t, int width) {
    std::copy_n(padded + static_cast<size_t>(t) * width, static_cast<size_t>(rows) * width, left);
}

void CausalConv::run(const Kernels &k, float *padded, float *left, float *y, int t) const {
    std::copy_n(left, static_cast<size_t>(context()) * in, padded);
    if (plain) {
        // One output channel would leave a packed panel almost empty; its taps are contiguous.
        for (int i = 0; i < t; i++)
            y[i] = bias[0] + k.dot(padded + static_cast<size_t>(i) * in, w.data(), taps * in);
    } else {
        k.gemm({padded, in, static_cast<ptrdiff_t>(dilation) * in, taps, in, w.data(), bias.data(),
                y, out, t, out, false});
    }
    keep_context(padded, left, context(), t, in);
}

void TransposedConv::run(const Kernels &k, const float *x, float *tail, float *y, int t,
                         float *z) const {
    k.gemm({x, in, 0, 1, in, w.data(), nullptr, z, static_cast<ptrdiff_t>(kernel) * out, t,
            kernel * out, false});
    const int keep = overlap();
    for (int i = 0; i < t; i++) {
        const float *zi = z + static_cast<size_t>(i) * kernel * out;
        float *yi = y + static_cast<size_t>(i) * stride * out;
        for (int j = 0; j < stride; j++) {
            for (int c = 0; c < out; c++) {
                const float carried = j < keep ? tail[j * out + c] : 0.0f;
                yi[j * out + c] = zi[j * out + c] + carried + bias[c];
            }
        }
        std::copy_n(zi + static_cast<size_t>(stride) * out, static_cast<size_t>(keep) * out, tail);
    }
}

void DepthwiseConv::run(const float *padded_x, float *y, int t) const {
    for (int i = 0; i < t; i++, y += channels) {
        std::copy_n(bias.data(), channels, y);
        for (int tap = 0; tap < taps; tap++) {
            const float *x = padded_x + static_cast<size_t>(i + tap) * channels;
            const float *f = w.data() + static_cast<size_t>(tap) * channels;
            for (int c = 0; c < channels; c++) y[c] += x[c] * f[c];
        }
    }
}

FloatBuffer read_vector(const GgufFile &f, const std::string &name, int n) {
    return f.read_f32(f.require(name, {n}));
}

Linear read_linear(const GgufFile &f, const Kernels &k, const std::string &weight,
                   const std::string &bias, int in, int out) {
    Linear l;
    l.in = in;
    l.out = out;
    const FloatBuffer w = f.read_f32(f.require(weight, {in, out}));  // [out][in]
    l.w = pack_panels(k, in, out, [&](int o, float *column) {
        std::copy_n(w.data() + static_cast<size_t>(o) * in, in, column);
    });
    if (!bias.empty()) l.bias = read_vector(f, bias, out);
    return l;
}

CausalConv read_causal_conv(const GgufFile &f, const Kernels &k, const std::string &name, int in,
                            int out, int dilation) {
    CausalConv c;
    c.in = in;
    c.out = out;
    c.dilation = dilation;
    const ggml_tensor *t = f.require(name + ".weight", {-1, in, out});
    c.taps = static_cast<int>(t->ne[0]);
    const FloatBuffer w = f.read_f32(t);  // [out][in][taps]
    const auto read = [&](int o, float *column) {
        for (int tap = 0; tap < c.taps; tap++) {
            const float *source = w.data() + static_cast<size_t>(o) * in * c.taps + tap;
            for (int i = 0; i < in; i++) *column++ = source[static_cast<size_t>(i) * c.taps];
        }
    };
    c.plain = dilation == 1 && out == 1 && c.taps > 1;
    if (c.plain) {
        c.w.resize(w.size());
        read(0, c.w.data());
    } else {
        c.w = pack_panels(k, c.taps * in, out, read);
    }
    c.bias = read_vector(f, name + ".bias", out);
    return c;
}

TransposedConv read_transposed_conv(const GgufFile &f, const Kernels &k, const std::string &name,
                                    int in, int out, int stride) {
    TransposedConv c;
    c.in = in;
    c.out = out;
    c.stride = stride;
    const ggml_tensor *t = f.require(name + ".weight", {-1, out, in});
    c.kernel = static_cast<int>(t->ne[0]);
    if (c.kernel < stride || c.kernel > 2 * stride) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s has kernel %d for stride %d", f.path().c_str(), t->name,
             c.kernel, stride);
    }
    const FloatBuffer w = f.read_f32(t);  // [in][out][kernel]
    c.w = pack_panels(k, in, c.kernel * out, [&](int n, float *column) {
        const float *source = w.data() + static_cast<size_t>(n % out) * c.kernel + n / out;
        const auto step = static_cast<size_t>(out) * c.kernel;
        for (int i = 0; i < in; i++) column[i] = source[static_cast<size_t>(i) * step];
    });
    c.bias = read_vector(f, name + ".bias", out);
    return c;
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

Snake read_snake(const GgufFile &f, const std::string &name, int channels) {
    return {read_vector(f, name + ".alpha", channels), read_vector(f, name + ".beta", channels)};
}

}  // namespace kz
