#include "nn/kernels/float_kernels.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "nn/kernels/kernel_sets.h"
#include "nn/kernels/panels.h"
#include "testing.h"

namespace kz {
extern const Kernels kernels_vec512;
}

using namespace kz;
using kz::testing::max_difference;
using kz::testing::noise;

namespace {

std::vector<const Kernels *> all_sets() {
    std::vector<const Kernels *> sets{&kernels_vec512};
    for (const std::string &name : kernel_names()) sets.push_back(&kernels(name.c_str()));
    return sets;
}

FloatBuffer random_buffer(size_t n, uint32_t seed) {
    FloatBuffer b(n);
    for (float &x : b) x = noise(seed);
    return b;
}

// Values in 16 bits, or f32 as they are.
std::vector<uint16_t> narrowed(const FloatBuffer &x, WeightType type) {
    std::vector<uint16_t> half(x.size());
    const auto n = static_cast<int64_t>(x.size());
    if (type == WeightType::f16) {
        ggml_fp32_to_fp16_row(x.data(), half.data(), n);
    } else {
        ggml_fp32_to_bf16_row(x.data(), reinterpret_cast<ggml_bf16_t *>(half.data()), n);
    }
    return half;
}

// c [m][n] of one gemm call, rows of a overlapping by dilated taps, misaligned by one float.
FloatBuffer product(const Kernels &k, WeightType type, int m, int n, int taps, int width,
                    int dilation, bool accumulate) {
    const FloatBuffer a =
        random_buffer(static_cast<size_t>(m + (taps - 1) * dilation) * width + 1, 7);
    const FloatBuffer w = random_buffer(static_cast<size_t>(taps) * width * n, 11);
    const FloatBuffer bias = random_buffer(static_cast<size_t>(n), 13);
    FloatBuffer c = random_buffer(static_cast<size_t>(m) * n, 17);
    Panels packed(k, type, taps * width, n);
    if (type == WeightType::f32) {
        packed.put(0, 0, width, n, taps, w.data());
    } else {
        packed.put(0, 0, width, n, taps, narrowed(w, type).data());
    }
    k.gemm({a.data() + 1, width, static_cast<ptrdiff_t>(dilation) * width, taps, width,
            packed.plane(), type, bias.data(), c.data(), n, m, n, accumulate});
    return c;
}

constexpr WeightType kTypes[] = {WeightType::f32, WeightType::f16, WeightType::bf16};

}  // namespace

TEST(gemm_equals_the_scalar_twin) {
    for (const Kernels *k : all_sets()) {
        for (int m : {1, 2, 3, 5, 6, 7, 12, 13, 25, 200}) {
            for (int n : {1, 7, 16, 33, 96}) {
                for (const WeightType type : kTypes) {
                    const int width = n == 7 ? 5 : 24, taps = n == 33 ? 1 : 7;
                    const bool accumulate = n % 2 == 0;
                    const FloatBuffer expected =
                        product(kernels("scalar"), type, m, n, taps, width, 3, accumulate);
                    const FloatBuffer got = product(*k, type, m, n, taps, width, 3, accumulate);
                    // Sums of at most 168 products below 1: their rounding stays under 168 * 2^-24
                    // * 168.
                    CHECK(max_difference(expected.data(), got.data(), got.size()) < 2e-3 / 16);
                }
            }
        }
    }
}

TEST(gemm_rows_do_not_depend_on_their_neighbours) {
    for (const Kernels *k : all_sets()) {
        for (const WeightType type : kTypes) {
            const FloatBuffer all = product(*k, type, 29, 40, 3, 24, 2, false);
            for (int m : {1, 2, 4, 11, 28}) {
                const FloatBuffer some = product(*k, type, m, 40, 3, 24, 2, false);
                // c starts from the same noise and a from the same rows, so the first m rows must
                // be equal bits.
                CHECK(std::memcmp(all.data(), some.data(),
                                  sizeof(float) * static_cast<size_t>(m) * 40) == 0);
            }
        }
    }
}

TEST(widening_loses_nothing) {
    // Every finite value of 16 bits, and a length that is no whole number of vectors.
    for (const Kernels *k : all_sets()) {
        std::vector<uint16_t> half;
        for (uint32_t h = 0; h < 0x10000; h++) {
            if ((h & 0x7c00) != 0x7c00) half.push_back(static_cast<uint16_t>(h));
        }
        half.pop_back();
        const size_t n = half.size();
        FloatBuffer got(n), expected(n);
        k->widen(got.data(), half.data(), WeightType::f16, static_cast<int>(n));
        ggml_fp16_to_fp32_row(half.data(), expected.data(), static_cast<int64_t>(n));
        CHECK(std::memcmp(got.data(), expected.data(), n * sizeof(float)) == 0);
        k->widen(got.data(), half.data(), WeightType::bf16, static_cast<int>(n));
        ggml_bf16_to_fp32_row(reinterpret_cast<const ggml_bf16_t *>(half.data()), expected.data(),
                              static_cast<int64_t>(n));
        CHECK(std::memcmp(got.data(), expected.data(), n * sizeof(float)) == 0);
    }
}

TEST(the_comparison_sees_a_planted_error) {
    FloatBuffer a(4, -2.0f), b(4, -2.0f);
    CHECK(max_difference(a.data(), b.data(), 4) == 0);
    b[3] = -300.0f;
    CHECK(max_difference(a.data(), b.data(), 4) == 298);
    b[3] = NAN;
    CHECK(std::isinf(max_difference(a.data(), b.data(), 4)));
}

TEST(vector_loops_equal_the_scalar_twin) {
    const Kernels &scalar = kernels("scalar");
    for (const Kernels *k : all_sets()) {
        for (int n = 0; n <= 70; n++) {
            const auto size = static_cast<size_t>(n);
            const FloatBuffer x = random_buffer(size, 3), y = random_buffer(size, 5);
            CHECK_NEAR(k->dot(x.data(), y.data(), n), scalar.dot(x.data(), y.data(), n), 1e-5);
            FloatBuffer a = y, b = y;
            k->axpy(a.data(), x.data(), 0.7f, n);
            scalar.axpy(b.data(), x.data(), 0.7f, n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-6);
            a = b = y;
            k->mul_add(a.data(), x.data(), x.data(), n);
            scalar.mul_add(b.data(), x.data(), x.data(), n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-6);
            a = b = x;
            for (size_t i = 0; i < size; i++) a[i] = b[i] *= 6;
            k->gelu(a.data(), n);
            scalar.gelu(b.data(), n);
            CHECK(max_difference(a.data(), b.data(), size) < 3e-6);  // 6 times the error of erf
            a = b = x;
            const float sa = k->exp_sum(a.data(), 0.5f, n), sb = scalar.exp_sum(b.data(), 0.5f, n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-6);
            CHECK_NEAR(sa, sb, 1e-4);
            a = b = x;
            for (size_t i = 0; i < size; i++) a[i] = b[i] *= 20;
            k->silu_mul(a.data(), y.data(), n);
            scalar.silu_mul(b.data(), y.data(), n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-5);
            if (n == 0) continue;
            k->rms_norm(a.data(), x.data(), y.data(), 1e-6f, n);
            scalar.rms_norm(b.data(), x.data(), y.data(), 1e-6f, n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-5);
            k->layer_norm(a.data(), x.data(), y.data(), x.data(), 1e-3f, n);
            scalar.layer_norm(b.data(), x.data(), y.data(), x.data(), 1e-3f, n);
            CHECK(max_difference(a.data(), b.data(), size) < 1e-5);
        }
    }
}

TEST(snake_equals_its_definition) {
    for (const Kernels *k : all_sets()) {
        for (int c : {1, 3, 8, 17, 96}) {
            const int t = 5;
            FloatBuffer x = random_buffer(static_cast<size_t>(t * c), 19), y(x.size());
            FloatBuffer alpha = random_buffer(static_cast<size_t>(c), 23),
                        beta = random_buffer(static_cast<size_t>(c), 29);
            for (float &v : x) v *= 30;
            for (float &v : alpha) v = 1.5f + v * 1.4f;
            k->snake(y.data(), x.data(), alpha.data(), beta.data(), t, c);
            for (int i = 0; i < t * c; i++) {
                const auto j = static_cast<size_t>(i), ch = static_cast<size_t>(i % c);
                const float angle = alpha[ch] * x[j];
                const double s = std::sin(static_cast<double>(angle));
                CHECK_NEAR(y[j], x[j] + beta[ch] * s * s, 1e-5);
            }
        }
    }
}

TEST(gelu_is_the_erf_form) {
    for (const Kernels *k : all_sets()) {
        for (int i = -4000; i <= 4000; i++) {
            const float x = static_cast<float>(i) * 0.0025f;
            float y = x;
            k->gelu(&y, 1);
            const double expected =
                0.5 * x * (1.0 + std::erf(static_cast<double>(x) / std::sqrt(2.0)));
            CHECK_NEAR(y, expected, 1e-6 * (1 + std::fabs(x)) / 2);
        }
    }
}

TEST(a_wrong_set_is_seen_and_the_next_one_used) {
    const Kernels &good = kernels();
    for (const Kernels *k : all_sets()) CHECK(computes_correctly(*k));

    const auto plant = [&](const char *what, auto change) {
        Kernels bad = good;
        change(bad);
        if (computes_correctly(bad)) testing::report(__FILE__, __LINE__, what);
        CHECK(&first_correct<Kernels>({&bad, &good}) == &good);
        CHECK(&first_correct<Kernels>({&bad, &kernels("scalar")}) == &kernels("scalar"));
    };
    plant("gemm of one type", [](Kernels &b) {
        b.gemm = [](const GemmArgs &g) {
            GemmArgs other = g;
            if (g.type == WeightType::bf16) other.type = WeightType::f16;
            kernels().gemm(other);
        };
    });
    plant("gemm of the last column", [](Kernels &b) {
        b.gemm = [](const GemmArgs &g) {
            kernels().gemm(g);
            g.c[g.n - 1] += 0.01f;
        };
    });
    plant("dot", [](Kernels &b) {
        b.dot = [](const float *x, const float *y, int n) { return kernels().dot(x, y, n - 1); };
    });
    plant("widen", [](Kernels &b) {
        b.widen = [](float *y, const void *, WeightType, int n) { std::fill_n(y, n, 0.0f); };
    });
    plant("axpy", [](Kernels &b) { b.axpy = [](float *, const float *, float, int) {}; });
    plant("mul_add",
          [](Kernels &b) { b.mul_add = [](float *, const float *, const float *, int) {}; });
    plant("snake", [](Kernels &b) {
        b.snake = [](float *y, const float *x, const float *, const float *, int t, int c) {
            std::copy_n(x, t * c, y);
        };
    });
    plant("exp_sum", [](Kernels &b) { b.exp_sum = [](float *, float, int) { return 1.0f; }; });
    plant("silu_mul", [](Kernels &b) { b.silu_mul = [](float *, const float *, int) {}; });
    plant("rms_norm", [](Kernels &b) {
        b.rms_norm = [](float *y, const float *x, const float *, float, int n) {
            std::copy_n(x, n, y);
        };
    });
    plant("layer_norm", [](Kernels &b) {
        b.layer_norm = [](float *y, const float *x, const float *w, const float *, float eps,
                          int n) { kernels().rms_norm(y, x, w, eps, n); };
    });
    plant("gelu", [](Kernels &b) { b.gelu = [](float *, int) {}; });
    plant("filter_input", [](Kernels &b) {
        b.filter_input = [](const MinimalFilter &f, const float *const *rows, float *v,
                            ptrdiff_t plane, int c) {
            kernels().filter_input(f, rows, v, plane, c);
            std::swap(v[plane], v[2 * plane]);
        };
    });
    plant("filter_output", [](Kernels &b) {
        b.filter_output = [](const MinimalFilter &f, const float *u, ptrdiff_t plane,
                             const float *bias, float *const *rows,
                             int c) { kernels().filter_output(f, u, plane, bias, rows, c - 1); };
    });
}

TEST(sets_are_chosen_by_name) {
    CHECK(std::strcmp(kernels("scalar").name, "scalar") == 0);
    CHECK(std::strcmp(kernels("vec128").name, "vec128") == 0);
    CHECK_ERROR(kernels("altivec"), KZ_ERR_ARGUMENT, "altivec");
}
