#include "nn/tensor_values.h"

#include <cstring>

#include "nn/linear.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::noise;

namespace {

// A file with one matrix "x" [65, 130].
struct OneTensor {
    OneTensor(ggml_type type, bool widened, float scale) : path(folder.file("x.gguf")) {
        testing::GgufWriter w;
        w.text("general.architecture", "test");
        w.matrices = type;
        w.widened = widened;
        w.tensor("x", {65, 130, 1, 1}, scale);
        w.write(path);
    }
    testing::TempFolder folder;
    std::string path;
};

}  // namespace

TEST(values_keep_16_bits_where_that_loses_nothing) {
    // 5e-5: f16 has them as subnormal numbers.
    for (const float scale : {1.0f, 5e-5f, 3e4f}) {
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
            for (const bool widened : {false, true}) {
                const OneTensor files(type, widened, scale);
                const GgufFile file(files.path);
                const ggml_tensor *t = file.require("x");
                const FloatBuffer expected = file.read_f32(t);
                const TensorValues narrow(file, t, true), wide(file, t, false);
                CHECK(narrow.type() ==
                      (type == GGML_TYPE_F16 ? WeightType::f16 : WeightType::bf16));
                CHECK(wide.type() == WeightType::f32);
                CHECK_EQ(narrow.bytes() * 2, wide.bytes());
                FloatBuffer got(expected.size());
                for (const TensorValues *v : {&narrow, &wide}) {
                    kernels("scalar").widen(got.data(), v->data(), v->type(),
                                            static_cast<int>(got.size()));
                    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) ==
                          0);
                }
            }
        }
    }
}

TEST(values_of_more_bits_or_range_stay_f32) {
    const OneTensor plain(GGML_TYPE_F32, false, 1), large(GGML_TYPE_BF16, true, 1e6f);
    const GgufFile plain_file(plain.path), large_file(large.path);
    CHECK(TensorValues(plain_file, plain_file.require("x"), true).type() == WeightType::f32);
    // Beyond f16 but bf16 all the same.
    CHECK(TensorValues(large_file, large_file.require("x"), true).type() == WeightType::bf16);
    // f16 rounds 1e6 to infinity: no f16 number, and refused where the file says f16.
    const OneTensor infinite(GGML_TYPE_F16, false, 1e6f);
    const GgufFile infinite_file(infinite.path);
    CHECK_ERROR(TensorValues(infinite_file, infinite_file.require("x"), true), KZ_ERR_FORMAT,
                "tensor x has a value that is not finite");
}

TEST(products_do_not_depend_on_how_weights_are_kept) {
    constexpr int kIn = 65, kOut = 130, kRows = 13;
    Team team;
    for (const std::string &name : kernel_names()) {
        const Compute compute{kernels(name.c_str()), team};
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
            const OneTensor files(type, false, 1);
            const GgufFile file(files.path);
            const Linear narrow = read_linear(file, compute.k, "x", "", kIn, kOut, 1);
            const Linear wide = read_linear(file, compute.k, "x", "", kIn, kOut, kFewRows + 1);
            CHECK(narrow.w.bytes() < wide.w.bytes());
            uint32_t seed = 3;
            FloatBuffer x(kRows * kIn), a(kRows * kOut), b(a.size());
            for (float &v : x) v = noise(seed);
            narrow.run(compute, x.data(), a.data(), kRows);
            wide.run(compute, x.data(), b.data(), kRows);
            CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
        }
    }
}

TEST(joined_matrices_of_different_types_become_f32) {
    testing::TempFolder folder;
    testing::GgufWriter w;
    w.text("general.architecture", "test");
    w.tensor("plain", {20, 30, 1, 1}, 1);
    w.matrices = GGML_TYPE_F16;
    w.tensor("half", {20, 10, 1, 1}, 1);
    w.write(folder.file("x.gguf"));
    const GgufFile file(folder.file("x.gguf"));
    const Linear both = read_joined(file, kernels("scalar"), 20, 40,
                                    {{"plain", 20, 30, 0, 0}, {"half", 20, 10, 0, 30}}, 1);
    CHECK(both.w.type() == WeightType::f32);
    // The scalar set's panels are single columns: the file's rows.
    const FloatBuffer plain = file.read_f32(file.require("plain"));
    const FloatBuffer half = file.read_f32(file.require("half"));
    const auto *values = static_cast<const float *>(both.w.plane());
    CHECK(std::memcmp(values, plain.data(), plain.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(values + plain.size(), half.data(), half.size() * sizeof(float)) == 0);
}
