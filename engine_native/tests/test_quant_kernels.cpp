#include "nn/quant_kernels.h"

#include <ggml.h>

#include <cstring>

#include "nn/kernel_sets.h"
#include "testing.h"

namespace kz {
extern const QuantKernels quant_vec512;
}

using namespace kz;
using kz::testing::noise;

namespace {

struct Problem {
    int m, in, n, bits;
};

std::vector<float> random_values(size_t n, uint32_t seed) {
    std::vector<float> v(n);
    for (float &x : v) x = noise(seed);
    return v;
}

std::vector<uint8_t> quantised(const Problem &p) {
    const auto w = random_values(static_cast<size_t>(p.in) * static_cast<size_t>(p.n), 11);
    const ggml_type type = p.bits == 8 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
    std::vector<uint8_t> rows(ggml_row_size(type, p.in) * static_cast<size_t>(p.n));
    ggml_quantize_chunk(type, w.data(), rows.data(), 0, p.n, p.in, nullptr);
    return rows;
}

struct Rounded {
    Rounded(const QuantKernels &k, const std::vector<float> &x, int m, int in)
        : q(x.size()), scale(x.size() / kQuantBlock), total(scale.size()) {
        for (int i = 0; i < m; i++) {
            const auto at = static_cast<size_t>(i) * static_cast<size_t>(in);
            k.round_row(x.data() + at, in, q.data() + at, scale.data() + at / kQuantBlock,
                        total.data() + at / kQuantBlock);
        }
    }
    QuantRows rows() { return {q.data(), scale.data(), total.data()}; }
    std::vector<int16_t> q;
    std::vector<float> scale;
    std::vector<int32_t> total;
};

// c [m][n], computed by pieces of panels.
std::vector<float> product(const QuantKernels &k, const Problem &p, bool accumulate,
                           int piece = 1 << 20) {
    const std::vector<uint8_t> rows = quantised(p);
    const auto bytes = k.layout.panel_bytes(p.bits, p.in);
    const int panels = k.layout.panels(p.n);
    std::vector<uint8_t> packed(bytes * static_cast<size_t>(panels));
    pack_quant(k.layout, p.bits, rows.data(), p.in, p.n, packed.data());
    Rounded a(k, random_values(static_cast<size_t>(p.m) * static_cast<size_t>(p.in), 7), p.m, p.in);
    auto c = random_values(static_cast<size_t>(p.m) * static_cast<size_t>(p.n), 17);
    for (int at = 0; at < panels; at += piece) {
        (p.bits == 8 ? k.gemm8 : k.gemm4)({a.rows(), p.m, p.in, packed.data(), c.data(), p.n, p.n,
                                           at, std::min(at + piece, panels), accumulate});
    }
    return c;
}

// The same from the weights and inputs in f32.
std::vector<float> exact(const Problem &p, bool accumulate) {
    const std::vector<uint8_t> rows = quantised(p);
    const ggml_type type = p.bits == 8 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
    const auto size = static_cast<size_t>(p.in);
    std::vector<float> w(size * static_cast<size_t>(p.n));
    ggml_get_type_traits(type)->to_float(rows.data(), w.data(), static_cast<int64_t>(w.size()));
    const auto x = random_values(static_cast<size_t>(p.m) * size, 7);
    auto c = random_values(static_cast<size_t>(p.m) * static_cast<size_t>(p.n), 17);
    for (size_t m = 0; m < static_cast<size_t>(p.m); m++) {
        for (size_t n = 0; n < static_cast<size_t>(p.n); n++) {
            double s = 0;
            for (size_t i = 0; i < size; i++)
                s += static_cast<double>(x[m * size + i]) * w[n * size + i];
            float &out = c[m * static_cast<size_t>(p.n) + n];
            out = static_cast<float>(accumulate ? out + s : s);
        }
    }
    return c;
}

std::vector<const QuantKernels *> all_sets() {
    std::vector<const QuantKernels *> sets{&quant_vec512};
    for (const std::string &name : quant_kernel_names())
        sets.push_back(&quant_kernels(name.c_str()));
    return sets;
}

double difference(const std::vector<float> &a, const std::vector<float> &b) {
    return kz::testing::max_difference(a.data(), b.data(), a.size());
}

}  // namespace

TEST(products_equal_those_of_the_dequantised_weights) {
    for (const QuantKernels *k : all_sets()) {
        for (const int bits : {8, 4}) {
            for (const int m : {1, 2, 3, 4, 5, 9}) {
                for (const int n : {1, 5, 16, 37, 96}) {
                    const Problem p{m, n == 5 ? 32 : 192, n, bits};
                    // 192 products below 1, inputs rounded to 2^-16 of the largest.
                    CHECK(difference(product(*k, p, m == 3), exact(p, m == 3)) < 192 * 2e-5);
                }
            }
        }
    }
}

TEST(a_result_depends_on_neither_neighbours_nor_pieces) {
    for (const QuantKernels *k : all_sets()) {
        for (const int bits : {8, 4}) {
            const auto whole = product(*k, {9, 256, 70, bits}, false);
            CHECK(difference(whole, product(*k, {9, 256, 70, bits}, false, 1)) == 0);
            CHECK(difference(whole, product(*k, {9, 256, 70, bits}, false, 3)) == 0);
            for (const int m : {1, 2, 3, 4, 7}) {
                const auto some = product(*k, {m, 256, 70, bits}, false);
                CHECK(std::memcmp(some.data(), whole.data(), some.size() * sizeof(float)) == 0);
            }
        }
    }
}

TEST(rounding_keeps_sixteen_bits_and_shows_what_is_not_finite) {
    for (const QuantKernels *k : all_sets()) {
        std::vector<float> x = random_values(96, 3);
        for (size_t i = 32; i < 64; i++) x[i] = 0;
        for (size_t i = 64; i < 96; i++) x[i] *= 1e4f;
        Rounded r(*k, x, 1, 96);
        for (size_t i = 0; i < x.size(); i++) {
            const float scale = r.scale[i / 32];
            CHECK_NEAR(r.q[i] * scale, x[i], 0.51 * scale);
        }
        for (size_t b = 0; b < 3; b++) {
            int32_t total = 0;
            for (size_t i = 0; i < 32; i++) total += r.q[b * 32 + i];
            CHECK_EQ(r.total[b], total);
        }
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            std::vector<float> y = x;
            y[40] = bad;
            Rounded s(*k, y, 1, 96);
            CHECK(std::isnan(s.scale[1]));
            CHECK(!std::isnan(s.scale[0]) && !std::isnan(s.scale[2]));
        }
    }
}

TEST(the_comparison_sees_one_wrong_weight) {
    const QuantKernels &k = quant_kernels();
    const Problem p{1, 64, 8, 8};
    auto c = product(k, p, false);
    c[3] += 0.01f;
    CHECK(difference(c, exact(p, false)) > 0.009);
}

TEST(quant_sets_are_chosen_by_name) {
    CHECK(std::strcmp(quant_kernels("scalar").name, "scalar") == 0);
    CHECK_ERROR(quant_kernels("altivec"), KZ_ERR_ARGUMENT, "altivec");
}

TEST(a_wrong_set_is_passed_over) {
    for (const QuantKernels *k : all_sets()) CHECK(computes_correctly(*k));
    const QuantKernels &best = quant_kernels();
    QuantKernels wrong = best;
    wrong.gemm8 = [](const QuantGemmArgs &g) {
        quant_kernels("scalar").gemm8(g);  // of another layout
    };
    QuantKernels idle = best;
    idle.gemm4 = [](const QuantGemmArgs &) {};
    QuantKernels deaf = best;
    deaf.round_row = [](const float *, int n, int16_t *q, float *scale, int32_t *total) {
        std::fill_n(q, n, int16_t{0});
        std::fill_n(scale, n / kQuantBlock, 0.0f);
        std::fill_n(total, n / kQuantBlock, 0);
    };
    QuantKernels one_row = best, stale = best;  // wrong in a single tile, in one way of calling
    one_row.gemm8 = [](const QuantGemmArgs &g) {
        quant_kernels().gemm8(g);
        if (g.m == 1) g.c[g.n - 1] += 1;
    };
    stale.gemm4 = [](const QuantGemmArgs &g) {
        QuantGemmArgs adding = g;
        adding.accumulate = true;
        quant_kernels().gemm4(adding);
    };
    for (const QuantKernels *bad : {&idle, &deaf, &one_row, &stale}) {
        CHECK(!computes_correctly(*bad));
        CHECK(&first_correct<QuantKernels>({bad, &best}) == &best);
    }
    if (best.layout.outputs != 1) CHECK(!computes_correctly(wrong));
}
