#include "model/codec/kernel_weights.h"

#include <string>

namespace kz {

namespace {

// Counts the bytes of matrices and convolutions, and the steps a frame has where it stands.
class Loader {
  public:
    Loader(const GgufFile &f, const Kernels &k, bool exact) : f_(f), k_(k), plan_{1, exact} {}

    FloatBuffer vector(const std::string &name, int n) { return read_vector(f_, name, n); }
    Linear linear(const std::string &weight, const std::string &bias, int in, int out) {
        return counted(read_linear(f_, k_, weight, bias, in, out, plan_.rows));
    }
    Linear joined(int in, int out, const std::vector<MatrixPart> &parts) {
        return counted(read_joined(f_, k_, in, out, parts, plan_.rows));
    }
    CausalConv conv(const std::string &name, int in, int out, int dilation) {
        return counted(read_causal_conv(f_, k_, name, in, out, dilation, plan_));
    }
    CausalConv transposed(const std::string &name, int in, int out, int stride) {
        CausalConv c = counted(read_transposed_conv(f_, k_, name, in, out, stride, plan_));
        plan_.rows *= stride;
        return c;
    }
    // A product a step; the file keeps its dimension of taps.
    Linear point(const std::string &name, int in, int out) {
        f_.require(name + ".weight", {1, in, out});
        CausalConv c = conv(name, in, out, 1);
        return {in, out, std::move(c.w), std::move(c.bias)};
    }
    DepthwiseConv depthwise(const std::string &name, int channels) {
        return read_depthwise_conv(f_, name, channels);
    }
    KernelForm::Window window(int, int) { return {}; }

    int64_t bytes() const { return bytes_; }

  private:
    Linear counted(Linear l) {
        bytes_ += static_cast<int64_t>(l.w.bytes());
        return l;
    }
    CausalConv counted(CausalConv c) {
        bytes_ += c.weight_bytes();
        return c;
    }

    const GgufFile &f_;
    const Kernels &k_;
    LayerPlan plan_;
    int64_t bytes_ = 0;
};

}  // namespace

KernelWeights load_kernel_weights(const GgufFile &f, const Kernels &k, bool exact) {
    KernelWeights w;
    w.config = read_codec_config(f);
    w.kernels = &k;
    w.codebooks = Codebooks(f, w.config);
    Loader loader(f, k, exact);
    LayerReader<KernelForm, Loader>(w.config, loader).read(w);
    w.bytes = w.codebooks.bytes() + loader.bytes();
    return w;
}

}  // namespace kz
