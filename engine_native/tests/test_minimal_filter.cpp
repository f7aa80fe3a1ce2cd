#include "nn/kernels/minimal_filter.h"

#include <cstring>
#include <set>

#include "nn/conv/convolution.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;
using kz::testing::noise;

namespace {

FloatBuffer random_buffer(size_t n, uint32_t seed) {
    FloatBuffer b(n);
    for (float &x : b) x = noise(seed);
    return b;
}

// One convolution c -> c in a file, 7 taps.
struct OneConv {
    OneConv(int in, int out, int taps, int rate = 0) : path(folder.file("conv.gguf")) {
        testing::GgufWriter w;
        w.text("general.architecture", "test");
        const float scale = 1.0f / std::sqrt(static_cast<float>(in * taps));
        if (rate > 0) {
            w.tensor("conv.weight", {taps, out, in, 1}, scale);
        } else {
            w.tensor("conv.weight", {taps, in, out, 1}, scale);
        }
        w.tensor("conv.bias", {out, 1, 1, 1}, 0.1f);
        w.write(path);
    }
    testing::TempFolder folder;
    std::string path;
};

// frames of x from pieces of them, with the state carried from one to the next.
FloatBuffer run(const CausalConv &conv, const FloatBuffer &x, int rows,
                const std::vector<int> &pieces) {
    Team team;
    const Compute compute{kernels(), team};
    FloatBuffer left(static_cast<size_t>(conv.context()) * conv.in, 0.0f), scratch, y;
    size_t at = 0;
    for (const int frames : pieces) {
        const auto t = static_cast<size_t>(frames) * rows, values = t * conv.in;
        FloatBuffer padded(left.size() + values), out(t * conv.out);
        std::copy_n(x.data() + at, values, padded.data() + left.size());
        conv.run(compute, padded.data(), left.data(), out.data(), static_cast<int>(t), scratch);
        y.insert(y.end(), out.begin(), out.end());
        at += values;
    }
    CHECK_EQ(at, x.size());
    return y;
}

}  // namespace

TEST(tiles_cover_every_step_once) {
    for (const int outputs : {3, 4, 6}) {
        for (const int dilation : {1, 3, 9}) {
            for (const int rows : {1, 5, 32, 160, 641}) {
                std::vector<int> seen(static_cast<size_t>(rows), 0);
                for (const int start : tile_starts(outputs, rows, dilation)) {
                    CHECK(start >= 0 && start < rows);
                    for (int j = 0; j < outputs && start + j * dilation < rows; j++)
                        seen[static_cast<size_t>(start + j * dilation)]++;
                }
                CHECK(std::set<int>(seen.begin(), seen.end()) == std::set<int>{1});
            }
        }
    }
}

TEST(filters_equal_the_plain_sum) {
    // In double, from the definition; the tile and its weights are exact to their rounding to f32.
    const std::pair<int, int> sizes[] = {{3, 2}, {5, 2}, {4, 7}, {6, 7}};
    for (const auto &[outputs, taps] : sizes) {
        const MinimalFilter f = minimal_filter(outputs, taps);
        const int points = f.points();
        CHECK_EQ(points, outputs + taps - 1);
        const FloatBuffer d = random_buffer(static_cast<size_t>(points), 3);
        const FloatBuffer g = random_buffer(static_cast<size_t>(taps), 5);
        for (const std::string &name : kernel_names()) {
            const Kernels &k = kernels(name.c_str());
            FloatBuffer v(static_cast<size_t>(points)), y(static_cast<size_t>(outputs));
            const float *from[MinimalFilter::kMaxPoints];
            float *to[MinimalFilter::kMaxOutputs];
            for (int i = 0; i < points; i++) from[i] = &d[static_cast<size_t>(i)];
            for (int i = 0; i < outputs; i++) to[i] = &y[static_cast<size_t>(i)];
            k.filter_input(f, from, v.data(), 1, 1);
            for (int i = 0; i < points; i++) {
                double u = 0;
                for (int tap = 0; tap < taps; tap++)
                    u += f.weights[static_cast<size_t>(i * taps + tap)] *
                         g[static_cast<size_t>(tap)];
                v[static_cast<size_t>(i)] *= static_cast<float>(u);
            }
            const float bias = 0.25f;
            k.filter_output(f, v.data(), 1, &bias, to, 1);
            for (int i = 0; i < outputs; i++) {
                double expected = bias;
                for (int tap = 0; tap < taps; tap++)
                    expected += static_cast<double>(g[static_cast<size_t>(tap)]) *
                                d[static_cast<size_t>(i + tap)];
                CHECK_NEAR(y[static_cast<size_t>(i)], expected, 1e-4);
            }
        }
    }
    CHECK_ERROR(minimal_filter(7, 7), KZ_ERR_ARGUMENT, "7 outputs");
}

TEST(convolutions_equal_direct_ones_in_any_chunking) {
    for (const int dilation : {1, 3, 9}) {
        for (const int rows : {32, 160}) {
            constexpr int kIn = 72, kOut = 50, kFrames = 5;
            const OneConv files(kIn, kOut, 7);
            const GgufFile file(files.path);
            const auto read = [&](bool exact) {
                return read_causal_conv(file, kernels(), "conv", kIn, kOut, dilation,
                                        {rows, exact});
            };
            const CausalConv fast = read(false), direct = read(true);
            CHECK(fast.filter);
            CHECK(!direct.filter);
            const FloatBuffer x = random_buffer(static_cast<size_t>(kFrames) * rows * kIn, 9);
            const FloatBuffer expected = run(direct, x, rows, {kFrames});
            const FloatBuffer whole = run(fast, x, rows, {kFrames});
            // Outputs are about 0.3; a tile multiplies the rounding of f32 by about 25.
            CHECK(max_difference(expected.data(), whole.data(), whole.size()) < 3e-5);
            for (const auto &pieces : std::vector<std::vector<int>>{{1, 1, 1, 1, 1}, {2, 3}}) {
                const FloatBuffer got = run(fast, x, rows, pieces);
                CHECK(std::memcmp(whole.data(), got.data(), sizeof(float) * got.size()) == 0);
            }
        }
    }
}

TEST(transposed_convolutions_equal_their_definition) {
    constexpr int kIn = 96, kOut = 48, kRows = 64, kFrames = 2;
    for (const int stride : {2, 5}) {
        for (const int kernel : {stride, 2 * stride - 1, 2 * stride}) {
            const OneConv files(kIn, kOut, kernel, stride);
            const GgufFile file(files.path);
            const FloatBuffer w = file.read_f32(file.require("conv.weight"));  // [in][out][kernel]
            const FloatBuffer bias = file.read_f32(file.require("conv.bias"));
            const FloatBuffer x = random_buffer(static_cast<size_t>(kFrames) * kRows * kIn, 9);
            constexpr int kSteps = kFrames * kRows;
            std::vector<double> expected(static_cast<size_t>(kSteps) * stride * kOut);
            for (size_t i = 0; i < expected.size(); i++) expected[i] = bias[i % kOut];
            for (int t = 0; t < kSteps; t++) {
                for (int j = 0; j < kernel && t * stride + j < kSteps * stride; j++) {
                    for (int o = 0; o < kOut; o++) {
                        double &y = expected[static_cast<size_t>((t * stride + j) * kOut + o)];
                        for (int i = 0; i < kIn; i++)
                            y += static_cast<double>(x[static_cast<size_t>(t * kIn + i)]) *
                                 w[static_cast<size_t>((i * kOut + o) * kernel + j)];
                    }
                }
            }
            const FloatBuffer want(expected.begin(), expected.end());
            for (const bool exact : {true, false}) {
                const CausalConv conv = read_transposed_conv(file, kernels(), "conv", kIn, kOut,
                                                             stride, {kRows, exact});
                CHECK_EQ(static_cast<bool>(conv.filter), !exact && kernel > stride);
                const FloatBuffer got = run(conv, x, kRows, {1, 1});
                CHECK(max_difference(want.data(), got.data(), want.size()) < 1e-5);
            }
        }
    }
}

TEST(part_of_a_frame_is_refused) {
    const OneConv files(64, 64, 7);
    const GgufFile file(files.path);
    const CausalConv conv = read_causal_conv(file, kernels(), "conv", 64, 64, 1, {32, false});
    Team team;
    FloatBuffer padded(70 * 64, 0.0f), left(6 * 64, 0.0f), y(64 * 64), scratch;
    CHECK_ERROR(conv.run({kernels(), team}, padded.data(), left.data(), y.data(), 33, scratch),
                KZ_ERR_ARGUMENT, "whole frames");
}
