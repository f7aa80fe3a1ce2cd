#include "nn/conv/convolution.h"

#include <algorithm>
#include <vector>

#include "nn/tensor_values.h"
#include "runtime/status.h"

namespace kz {

namespace {

// Tiles transformed at a time: their values at all points and the products stay in the cache, and
// there are enough of them to use each weight well.
int tiles_at_a_time(const CausalConv &conv) {
    constexpr int kCacheFloats = 1 << 18, kFewest = 72;
    const int tile = conv.filter.points() * (conv.in + conv.out);
    return std::max(kFewest, kCacheFloats / tile / 12 * 12);
}

// Steps of i of panels that are transformed at a time.
constexpr size_t kBlock = 64;

// taps [f.taps][n] -> to [point][plane of n]: for each point the sum over taps of its factors.
void transform_block(const MinimalFilter &f, const double (*taps)[kBlock], size_t n,
                     float *const *to) {
    const auto add = [&](double *sum, const double *factors, int first, int step) {
        std::fill_n(sum, n, 0.0);
        for (int tap = first; tap < f.taps; tap += step) {
            for (size_t i = 0; i < n; i++) sum[i] += factors[tap] * taps[tap][i];
        }
    };
    double even[kBlock], odd[kBlock];
    const int last = f.points() - 1;
    for (const int point : {0, last}) {
        add(even, f.weights.data() + static_cast<ptrdiff_t>(point) * f.taps, 0, 1);
        for (size_t i = 0; i < n; i++) to[point][i] = static_cast<float>(even[i]);
    }
    // The factors of -p are those of p with the odd ones negated.
    for (int point = 1; point < last; point += 2) {
        const double *factors = f.weights.data() + static_cast<ptrdiff_t>(point) * f.taps;
        add(even, factors, 0, 2);
        add(odd, factors, 1, 2);
        for (size_t i = 0; i < n; i++) {
            to[point][i] = static_cast<float>(even[i] + odd[i]);
            to[point + 1][i] = static_cast<float>(even[i] - odd[i]);
        }
    }
}

// W [taps * in][out] in panels -> the same for each point, [in][out].
Panels transform_weights(const Kernels &k, const MinimalFilter &f, const Panels &direct, int in) {
    Panels result(k, WeightType::f32, in, direct.columns(), f.points());
    const size_t step = static_cast<size_t>(in) * static_cast<size_t>(direct.nr());
    const size_t size = weight_size(direct.type());
    const auto *w = static_cast<const std::byte *>(direct.plane());
    for (int panel = 0; panel < direct.panels(); panel++, w += step * f.taps * size) {
        for (size_t i0 = 0; i0 < step; i0 += kBlock) {
            const size_t n = std::min(kBlock, step - i0);
            double taps[MinimalFilter::kMaxTaps][kBlock];
            for (int tap = 0; tap < f.taps; tap++) {
                float wide[kBlock];
                k.widen(wide, w + (static_cast<size_t>(tap) * step + i0) * size, direct.type(),
                        static_cast<int>(n));
                std::copy_n(wide, n, taps[tap]);
            }
            float *to[MinimalFilter::kMaxPoints];
            for (int point = 0; point < f.points(); point++) {
                to[point] = static_cast<float *>(result.plane(point)) +
                            static_cast<size_t>(panel) * step + i0;
            }
            transform_block(f, taps, n, to);
        }
    }
    return result;
}

// Gives a convolution with packed taps its filter, if one pays.
void plan_filter(CausalConv &conv, const Kernels &k, LayerPlan plan) {
    conv.rows = plan.rows;
    if (plan.exact) return;
    conv.filter = choose_filter(conv.taps, plan.rows, conv.dilation, conv.in, conv.out);
    if (!conv.filter) return;
    conv.tiles = tile_starts(conv.filter.outputs, plan.rows, conv.dilation);
    conv.w = transform_weights(k, conv.filter, conv.w, conv.in);
}

// Whether weights are read in 16 bits: few steps wait for them, and a filter's are transformed.
bool reads_narrow(int taps, int dilation, int in, int out, LayerPlan plan) {
    return plan.rows <= kFewRows ||
           (!plan.exact && choose_filter(taps, plan.rows, dilation, in, out));
}

}  // namespace

void Snake::run(const Compute &c, const float *x, float *y, int t) const {
    const auto width = static_cast<int>(alpha.size());
    c.share(t, kGrainValues / width, [&](int first, int last) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(first) * width;
        c.k.snake(y + at, x + at, alpha.data(), beta.data(), last - first, width);
    });
}

void keep_context(const float *padded, float *left, int rows, int t, int width) {
    std::copy_n(padded + static_cast<size_t>(t) * width, static_cast<size_t>(rows) * width, left);
}

void CausalConv::run(const Compute &c, float *padded, float *left, float *y, int t,
                     FloatBuffer &scratch) const {
    std::copy_n(left, static_cast<size_t>(context()) * in, padded);
    if (plain) {
        // One output channel would leave a packed panel almost empty; its taps are contiguous.
        c.share(t, kGrainProducts / (taps * in), [&](int first, int last) {
            for (int i = first; i < last; i++) {
                y[i] = bias[0] +
                       c.k.dot(padded + static_cast<size_t>(i) * in, column.data(), taps * in);
            }
        });
    } else if (filter) {
        if (t % rows != 0) fail(KZ_ERR_ARGUMENT, "%d steps are no whole frames of %d", t, rows);
        run_tiles(c, padded, y, t / rows, scratch);
    } else {
        c.gemm({padded, in, static_cast<ptrdiff_t>(dilation) * in, taps, in, w.plane(), w.type(),
                bias.data(), y, out, t, out, false});
    }
    keep_context(padded, left, context(), t, in);
}

void CausalConv::run_tiles(const Compute &c, const float *padded, float *y, int frames,
                           FloatBuffer &scratch) const {
    const int per_frame = static_cast<int>(tiles.size()), total = frames * per_frame;
    const int block = std::min(total, tiles_at_a_time(*this)), points = filter.points();
    const ptrdiff_t v_plane = static_cast<ptrdiff_t>(block) * in;
    const ptrdiff_t u_plane = static_cast<ptrdiff_t>(block) * out;
    const size_t v_size = static_cast<size_t>(v_plane) * points;
    float *v = at_least(scratch, v_size + static_cast<size_t>(u_plane) * points + in);
    float *u = v + v_size, *zeros = u + u_plane * points;
    std::fill_n(zeros, in, 0.0f);

    for (int tile0 = 0; tile0 < total; tile0 += block) {
        const int n = std::min(block, total - tile0);
        c.share(n, kGrainValues / (2 * in), [&](int first, int last) {
            const float *from[MinimalFilter::kMaxPoints];
            for (int i = first; i < last; i++) {
                const int frame = (tile0 + i) / per_frame;
                const int start = tiles[static_cast<size_t>((tile0 + i) % per_frame)];
                for (int j = 0; j < points; j++) {
                    const int row = start + j * dilation;
                    from[j] = row < context() + rows
                                  ? padded + (static_cast<ptrdiff_t>(frame) * rows + row) * in
                                  : zeros;
                }
                c.k.filter_input(filter, from, v + static_cast<ptrdiff_t>(i) * in, v_plane, in);
            }
        });
        // All points' panels in one list.
        const int panels = w.panels();
        const int64_t panel = static_cast<int64_t>(n) * in * w.nr();
        c.share(points * panels, static_cast<int>(kGrainProducts / panel) + 1,
                [&](int first, int last) {
                    while (first < last) {
                        const int point = first / panels, begin = first % panels;
                        const int end = std::min(panels, begin + last - first);
                        const GemmArgs whole{v + point * v_plane,
                                             in,
                                             0,
                                             1,
                                             in,
                                             w.plane(point),
                                             WeightType::f32,
                                             nullptr,
                                             u + point * u_plane,
                                             out,
                                             n,
                                             out,
                                             false};
                        c.k.gemm(panel_range(whole, w.nr(), begin, end));
                        first += end - begin;
                    }
                });
        c.share(n, kGrainValues / (2 * out), [&](int first, int last) {
            float *to[MinimalFilter::kMaxOutputs];
            for (int i = first; i < last; i++) {
                const int frame = (tile0 + i) / per_frame;
                const int start = tiles[static_cast<size_t>((tile0 + i) % per_frame)];
                for (int j = 0; j < filter.outputs; j++) {
                    const int row = start + j * dilation;
                    to[j] = row < rows ? y + (static_cast<ptrdiff_t>(frame) * rows + row) * out
                                       : nullptr;
                }
                c.k.filter_output(filter, u + static_cast<ptrdiff_t>(i) * out, u_plane, bias.data(),
                                  to, out);
            }
        });
    }
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

CausalConv read_causal_conv(const GgufFile &f, const Kernels &k, const std::string &name, int in,
                            int out, int dilation, LayerPlan plan) {
    CausalConv c;
    c.in = in;
    c.out = out;
    c.dilation = dilation;
    const ggml_tensor *t = f.require(name + ".weight", {-1, in, out});
    c.taps = static_cast<int>(t->ne[0]);
    c.plain = dilation == 1 && out == 1 && c.taps > 1;
    if (c.plain) {
        const FloatBuffer w = f.read_f32(t);  // [1][in][taps]
        for (int tap = 0; tap < c.taps; tap++) {
            for (int i = 0; i < in; i++)
                c.column.push_back(w[static_cast<size_t>(i) * c.taps + tap]);
        }
    } else {
        // [out][in][taps]
        const TensorValues source(f, t, reads_narrow(c.taps, dilation, in, out, plan));
        c.w = Panels(k, source.type(), c.taps * in, out);
        c.w.put(0, 0, in, out, c.taps, source.data());
        plan_filter(c, k, plan);
    }
    c.bias = read_vector(f, name + ".bias", out);
    return c;
}

namespace {

// src [in][out][kernel] -> panels of [taps * in][stride * out]: tap 0 belongs to the older step.
template <typename T>
void put_transposed(Panels &w, const T *src, int in, int out, int kernel, int stride, int taps) {
    const auto columns = static_cast<size_t>(stride) * out;
    std::vector<T> row(columns * static_cast<size_t>(taps));
    for (int i = 0; i < in; i++, src += static_cast<ptrdiff_t>(out) * kernel) {
        std::fill(row.begin(), row.end(), T{});
        for (int j = 0; j < kernel; j++) {
            T *to = row.data() + static_cast<size_t>(taps - 1 - j / stride) * columns +
                    static_cast<size_t>(j % stride) * out;
            for (int o = 0; o < out; o++) to[o] = src[static_cast<ptrdiff_t>(o) * kernel + j];
        }
        for (int tap = 0; tap < taps; tap++)
            w.put_rows(tap * in + i, 1, row.data() + static_cast<size_t>(tap) * columns);
    }
}

}  // namespace

const ggml_tensor *require_transposed(const GgufFile &f, const std::string &name, int in, int out,
                                      int stride) {
    const ggml_tensor *t = f.require(name + ".weight", {-1, out, in});
    if (t->ne[0] < stride || t->ne[0] > 2 * stride) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s has kernel %d for stride %d", f.path().c_str(), t->name,
             static_cast<int>(t->ne[0]), stride);
    }
    return t;
}

CausalConv read_transposed_conv(const GgufFile &f, const Kernels &k, const std::string &name,
                                int in, int out, int stride, LayerPlan plan) {
    const ggml_tensor *t = require_transposed(f, name, in, out, stride);
    const auto kernel = static_cast<int>(t->ne[0]);
    CausalConv c;
    c.in = in;
    c.out = out * stride;
    c.taps = kernel > stride ? 2 : 1;
    const TensorValues source(f, t, reads_narrow(c.taps, 1, in, c.out, plan));
    c.w = Panels(k, source.type(), c.taps * in, c.out);
    if (source.type() == WeightType::f32) {
        put_transposed(c.w, static_cast<const float *>(source.data()), in, out, kernel, stride,
                       c.taps);
    } else {
        put_transposed(c.w, static_cast<const uint16_t *>(source.data()), in, out, kernel, stride,
                       c.taps);
    }
    plan_filter(c, k, plan);
    const FloatBuffer bias = read_vector(f, name + ".bias", out);
    for (int i = 0; i < stride; i++) c.bias.insert(c.bias.end(), bias.begin(), bias.end());
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

}  // namespace kz
