#include "nn/kernels.h"

#include <cstring>

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

// c [m][n] of one gemm call, rows of a overlapping by dilated taps, misaligned by one float.
FloatBuffer product(const Kernels &k, int m, int n, int taps, int width, int dilation,
                    bool accumulate) {
    const FloatBuffer a =
        random_buffer(static_cast<size_t>(m + (taps - 1) * dilation) * width + 1, 7);
    const FloatBuffer w = random_buffer(static_cast<size_t>(taps) * width * n, 11);
    const FloatBuffer bias = random_buffer(static_cast<size_t>(n), 13);
    FloatBuffer c = random_buffer(static_cast<size_t>(m) * n, 17);
    const FloatBuffer packed = pack_panels(k, taps * width, n, [&](int j, float *column) {
        for (int i = 0; i < taps * width; i++) column[i] = w[static_cast<size_t>(i) * n + j];
    });
    k.gemm({a.data() + 1, width, static_cast<ptrdiff_t>(dilation) * width, taps, width,
            packed.data(), bias.data(), c.data(), n, m, n, accumulate});
    return c;
}

}  // namespace

TEST(gemm_equals_the_scalar_twin) {
    for (const Kernels *k : all_sets()) {
        for (int m : {1, 2, 3, 5, 6, 7, 12, 13, 25, 200}) {
            for (int n : {1, 7, 16, 33, 96}) {
                for (int taps : {1, 7}) {
                    const int width = n == 7 ? 5 : 24;
                    const FloatBuffer expected =
                        product(kernels("scalar"), m, n, taps, width, 3, taps == 7);
                    const FloatBuffer got = product(*k, m, n, taps, width, 3, taps == 7);
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
        const FloatBuffer all = product(*k, 29, 40, 3, 24, 2, false);
        for (int m : {1, 2, 4, 11, 28}) {
            const FloatBuffer some = product(*k, m, 40, 3, 24, 2, false);
            // c starts from the same noise and a from the same rows, so the first m rows must be
            // equal bits.
            CHECK(std::memcmp(all.data(), some.data(),
                              sizeof(float) * static_cast<size_t>(m) * 40) == 0);
        }
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

TEST(sets_are_chosen_by_name) {
    CHECK(std::strcmp(kernels("scalar").name, "scalar") == 0);
    CHECK(std::strcmp(kernels("vec128").name, "vec128") == 0);
    CHECK_ERROR(kernels("altivec"), KZ_ERR_ARGUMENT, "altivec");
}
