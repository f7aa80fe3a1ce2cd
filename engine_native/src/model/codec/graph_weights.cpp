#include "model/codec/graph_weights.h"

#include <algorithm>
#include <string>

#include "model/codec/decoder.h"
#include "model/codec/graph_build.h"
#include "nn/conv/convolution.h"
#include "runtime/status.h"

namespace kz {

namespace {

constexpr int kMostTaps = 8;  // what a graph has room for

// Adds the tensors of layers; their values are read when they have memory.
class Loader {
  public:
    Loader(const GgufFile &f, GraphWeights &w) : f_(f), w_(w) {}

    ggml_tensor *vector(const std::string &name, int n) {
        const ggml_tensor *t = f_.require(name, {n});
        return w_.tensors->add(name, GGML_TYPE_F32, {n},
                               [this, t](ggml_tensor *to) { set(to, f_.read_f32(t)); });
    }

    GraphLinear linear(const std::string &weight, const std::string &bias, int in, int out) {
        const ggml_tensor *t = f_.require(weight, {in, out});
        GraphLinear l;
        l.w = w_.tensors->add(weight, GGML_TYPE_F32, {in, out},
                              [this, t](ggml_tensor *to) { set(to, f_.read_f32(t)); });
        if (!bias.empty()) l.bias = vector(bias, out);
        return l;
    }

    std::vector<GraphLinear> joined(int, int, const std::vector<MatrixPart> &parts) {
        std::vector<GraphLinear> all;
        for (const MatrixPart &p : parts) all.push_back(linear(p.name, "", p.in, p.out));
        return all;
    }

    // A product a step; the file keeps its dimension of taps.
    GraphLinear point(const std::string &name, int in, int out) {
        f_.require(name + ".weight", {1, in, out});
        const GraphConv c = conv(name, in, out, 1);
        return {c.taps[0], c.bias};
    }

    // File: [out][in][taps].
    GraphConv conv(const std::string &name, int in, int out, int dilation) {
        const ggml_tensor *t = f_.require(name + ".weight", {-1, in, out});
        const int taps = taps_of(t);
        GraphConv c;
        c.dilation = dilation;
        for (int tap = 0; tap < taps; tap++) {
            c.taps.push_back(add_tap(name, tap, in, out, [this, t, tap, taps](float *to) {
                const FloatBuffer &w = values(t);
                for (size_t i = 0; i < w.size() / static_cast<size_t>(taps); i++)
                    to[i] = w[i * static_cast<size_t>(taps) + static_cast<size_t>(tap)];
            }));
        }
        c.bias = vector(name + ".bias", out);
        c.carry = carry(in, (taps - 1) * dilation);
        return c;
    }

    // File: [in][out][kernel]; outputs of the older step come from the end of the kernel.
    GraphConv transposed(const std::string &name, int in, int out, int stride) {
        const ggml_tensor *t = require_transposed(f_, name, in, out, stride);
        const auto kernel = static_cast<int>(t->ne[0]);
        const int taps = kernel > stride ? 2 : 1;
        GraphConv c;
        c.stride = stride;
        for (int tap = 0; tap < taps; tap++) {
            const int begin = (taps - 1 - tap) * stride, end = std::min(kernel, begin + stride);
            const auto fill = [this, t, in, out, kernel, begin, end](float *to) {
                const FloatBuffer &w = values(t);
                for (int j = begin; j < end; j++) {
                    for (int o = 0; o < out; o++) {
                        float *row = to + (static_cast<ptrdiff_t>(j - begin) * out + o) * in;
                        for (int i = 0; i < in; i++)
                            row[i] = w[(static_cast<size_t>(i) * out + o) * kernel + j];
                    }
                }
            };
            c.taps.push_back(add_tap(name, tap, in, out * stride, fill));
        }
        c.bias = vector(name + ".bias", out);
        c.carry = carry(in, taps - 1);
        return c;
    }

    // One filter per channel; file: [channels][taps].
    GraphConv depthwise(const std::string &name, int channels) {
        const ggml_tensor *t = f_.require(name + ".weight", {-1, 1, channels});
        const int taps = taps_of(t);
        GraphConv c;
        for (int tap = 0; tap < taps; tap++) {
            c.taps.push_back(
                add_tap(name, tap, channels, 1, [this, t, tap, taps, channels](float *to) {
                    const FloatBuffer &w = values(t);
                    for (int i = 0; i < channels; i++)
                        to[i] = w[static_cast<size_t>(i) * taps + tap];
                }));
        }
        c.bias = vector(name + ".bias", channels);
        c.carry = carry(channels, taps - 1);
        return c;
    }

    GraphForm::Window window(int width, int rows) {
        return {carry(width, rows), carry(width, rows)};
    }

  private:
    Carry carry(int width, int rows) {
        const Carry c{width, rows, w_.state_floats};
        w_.state_floats += static_cast<size_t>(width) * static_cast<size_t>(rows);
        return c;
    }

    int taps_of(const ggml_tensor *t) const {
        if (t->ne[0] > kMostTaps) {
            fail(KZ_ERR_FORMAT, "%s: tensor %s has %lld taps, expected at most %d on a device",
                 f_.path().c_str(), t->name, static_cast<long long>(t->ne[0]), kMostTaps);
        }
        return static_cast<int>(t->ne[0]);
    }

    template <typename F>
    ggml_tensor *add_tap(const std::string &name, int tap, int in, int out, F fill) {
        return w_.tensors->add(name + "." + std::to_string(tap), GGML_TYPE_F32, {in, out},
                               [fill](ggml_tensor *to) {
                                   FloatBuffer part(static_cast<size_t>(ggml_nelements(to)), 0.0f);
                                   fill(part.data());
                                   set(to, part);
                               });
    }
    static void set(ggml_tensor *to, const FloatBuffer &values) {
        ggml_backend_tensor_set(to, values.data(), 0, ggml_nbytes(to));
    }
    // The taps of a tensor are filled one after the other: it is read once.
    const FloatBuffer &values(const ggml_tensor *t) {
        if (t != read_) values_ = f_.read_f32(t);
        read_ = t;
        return values_;
    }

    const GgufFile &f_;
    GraphWeights &w_;
    const ggml_tensor *read_ = nullptr;
    FloatBuffer values_;
};

}  // namespace

int GraphWeights::longest_chunk() const {
    constexpr int kMostPieces = 16;
    int frames = Decoder::kMaxFrames;
    while (max_rows > 0 && frames > 1 && frames * config.samples_per_frame > kMostPieces * max_rows)
        frames /= 2;
    return frames;
}

void GraphWeights::place(PlacedTensors &placed, ggml_tensor *state, bool weights) const {
    PlacedGraph one(graph_nodes(*this, 1)), most(graph_nodes(*this, longest_chunk()));
    build_graph(one, *this, state, 1, false);
    build_graph(most, *this, state, longest_chunk(), false);
    placed.place(device, {one.graph(), most.graph()}, weights);
}

GraphWeights load_graph_weights(const GgufFile &f, const Kernels &kernels,
                                ggml_backend_dev_t device, int max_rows) {
    GraphWeights w;
    w.config = read_codec_config(f);
    w.device = device;
    w.max_rows = max_rows;
    w.kernels = &kernels;
    const CodecConfig &c = w.config;
    w.codebooks = Codebooks(f, c);
    const size_t most =
        64 + static_cast<size_t>(c.layers) * 12 + c.upsample.size() * 32 + c.rates.size() * 64;
    w.tensors = std::make_unique<PlacedTensors>(most);
    Loader loader(f, w);
    LayerReader<GraphForm, Loader>(w.config, loader).read(w);

    PlacedTensors state(1);
    w.place(*w.tensors, state.add("state", GGML_TYPE_F32, {static_cast<int64_t>(w.state_floats)}),
            true);
    return w;
}

}  // namespace kz
