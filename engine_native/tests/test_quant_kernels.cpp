#include "nn/kernels/quant_kernels.h"

#include <ggml.h>

#include <cstring>

#include "nn/kernels/kernel_sets.h"
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
    // Value i, and what a total sums of it.
    int value(const QuantKernels &k, size_t i) const {
        if (k.layout.word_bits == 16) return q[i];
        int8_t high;
        std::memcpy(&high, byte(i), sizeof(high));
        return 256 * high + low(i);
    }
    int counted(const QuantKernels &k, size_t i) const {
        return std::strcmp(k.name, "dotprod") == 0 ? low(i) : value(k, i);
    }
    const uint8_t *byte(size_t i) const {
        return reinterpret_cast<const uint8_t *>(q.data() + i / kQuantBlock * kQuantBlock) +
               i % kQuantBlock;
    }
    int low(size_t i) const { return byte(i)[kQuantBlock]; }
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

// Whether a set's multiply-adds round once: SSE2 has none that do.
bool fused(const QuantKernels &k) {
#if defined(__FMA__) || defined(__aarch64__)
    (void)k;
    return true;
#else
    return std::strcmp(k.name, "vec128") != 0 && std::strcmp(k.name, "vec512") != 0;
#endif
}

// The largest products there are, with scales of every kind: weights -128 and 127 (-8 and 7)
// against inputs that round to +-32767, and any others; the last rows and outputs hold what is not
// finite.
class Extreme {
  public:
    Extreme(const QuantKernels &k, const Problem &p)
        : k_(k), p_(p), source_(weights(p)), a_(k, inputs(p), p.m, p.in) {}

    std::vector<float> computed(bool accumulate) const {
        const int panels = k_.layout.panels(p_.n);
        std::vector<uint8_t> packed(k_.layout.panel_bytes(p_.bits, p_.in) *
                                    static_cast<size_t>(panels));
        pack_quant(k_.layout, p_.bits, source_.data(), p_.in, p_.n, packed.data());
        std::vector<float> c = before();
        Rounded a = a_;
        (p_.bits == 8 ? k_.gemm8 : k_.gemm4)(
            {a.rows(), p_.m, p_.in, packed.data(), c.data(), p_.n, p_.n, 0, panels, accumulate});
        return c;
    }

    // The same, one output after the other.
    std::vector<float> chain(bool accumulate) const {
        std::vector<float> c = before();
        for (int m = 0; m < p_.m; m++) {
            for (int n = 0; n < p_.n; n++) {
                float sum = 0;
                for (int b = 0; b < p_.in / kQuantBlock; b++) {
                    const auto block = static_cast<size_t>(m * p_.in / kQuantBlock + b);
                    const float scale = weight_scale(n, b) * a_.scale[block];
                    const auto products = static_cast<float>(block_sum(block, n, b));
                    sum = fused(k_) ? std::fma(products, scale, sum) : sum + products * scale;
                }
                float &out = c[static_cast<size_t>(m * p_.n + n)];
                out = accumulate ? out + sum : sum;
            }
        }
        return c;
    }

    // Outputs that are neither equal bits nor both NaN.
    static int different(const std::vector<float> &a, const std::vector<float> &b) {
        int count = 0;
        for (size_t i = 0; i < a.size(); i++) {
            if (std::isnan(a[i]) && std::isnan(b[i])) continue;
            count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
        }
        return count;
    }

    // An output whose bits say something.
    static size_t finite() { return 0; }

  private:
    static std::vector<uint8_t> weights(const Problem &p) {
        constexpr uint16_t kScales[] = {0x2400, 0x0001, 0x7bff, 0xa400, 0x0000};  // of f16
        const int bytes = kQuantBlock * p.bits / 8, blocks = p.in / kQuantBlock;
        std::vector<uint8_t> rows;
        uint32_t seed = 5;
        for (int b = 0; b < p.n * blocks; b++) {
            uint16_t scale = kScales[b % 5];
            if (b == p.n * blocks - 1 && p.n > 1) scale = 0x7e00;        // NaN
            if (b == (p.n - 1) * blocks - 1 && p.n > 3) scale = 0x7c00;  // infinity
            rows.push_back(static_cast<uint8_t>(scale & 255));
            rows.push_back(static_cast<uint8_t>(scale >> 8));
            for (int i = 0; i < bytes; i++) {
                noise(seed);
                const uint8_t extreme = p.bits == 8 ? (b % 2 ? 0x80 : 0x7f) : (b % 2 ? 0x00 : 0xff);
                rows.push_back(b % 3 ? static_cast<uint8_t>(seed >> 24) : extreme);
            }
        }
        return rows;
    }
    static std::vector<float> inputs(const Problem &p) {
        std::vector<float> x =
            random_values(static_cast<size_t>(p.m) * static_cast<size_t>(p.in), 7);
        for (size_t i = 0; i < x.size(); i++) {
            const size_t block = i / kQuantBlock;
            if (block % 3 == 1) x[i] = block % 2 ? 3.0f : -3.0f;
            if (block % 3 == 2) x[i] *= 1e6f;
        }
        if (p.m > 2) x[static_cast<size_t>(p.m * p.in - 1)] = INFINITY;
        if (p.m > 4) x[static_cast<size_t>((p.m - 1) * p.in - 1)] = NAN;
        return x;
    }
    std::vector<float> before() const {
        return random_values(static_cast<size_t>(p_.m) * static_cast<size_t>(p_.n), 17);
    }
    const uint8_t *source(int n, int b) const {
        const int bytes = 2 + kQuantBlock * p_.bits / 8;
        return source_.data() + static_cast<ptrdiff_t>(n * (p_.in / kQuantBlock) + b) * bytes;
    }
    float weight_scale(int n, int b) const {
        ggml_fp16_t half;
        std::memcpy(&half, source(n, b), sizeof(half));
        return ggml_fp16_to_fp32(half);
    }
    int block_sum(size_t block, int n, int b) const {
        const uint8_t *w = source(n, b) + 2;
        int sum = 0;
        for (int i = 0; i < kQuantBlock; i++) {
            const int weight =
                p_.bits == 8 ? static_cast<int8_t>(w[i]) : (w[i % 16] >> (i / 16 * 4) & 15) - 8;
            sum += weight * a_.value(k_, block * kQuantBlock + static_cast<size_t>(i));
        }
        return sum;
    }

    const QuantKernels &k_;
    Problem p_;
    std::vector<uint8_t> source_;
    Rounded a_;
};

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

TEST(every_bit_is_that_of_one_chain_of_exact_block_sums) {
    for (const QuantKernels *k : all_sets()) {
        if (k->layout.outputs == 1) continue;  // the scalar twin adds in double
        for (const int bits : {8, 4}) {
            for (int m = 1; m <= 17; m++) {
                for (const int n : {1, 3, 17, 71}) {
                    for (const bool accumulate : {false, true}) {
                        const Extreme e(*k, {m, n == 3 ? 32 : 160, n, bits});
                        CHECK_EQ(e.different(e.computed(accumulate), e.chain(accumulate)), 0);
                    }
                }
            }
        }
    }
}

TEST(the_comparison_of_bits_sees_one) {
    const Extreme e(quant_kernels("vec128"), {3, 160, 17, 8});
    std::vector<float> c = e.computed(false);
    for (const size_t at : {e.finite(), c.size() - 1}) {
        std::vector<float> other = c;
        uint32_t bits;
        std::memcpy(&bits, &other[at], sizeof(bits));
        bits ^= std::isnan(other[at]) ? 0x7fc00000u : 1u;
        std::memcpy(&other[at], &bits, sizeof(bits));
        CHECK_EQ(e.different(other, e.chain(false)), 1);
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
            CHECK_NEAR(r.value(*k, i) * scale, x[i], 0.51 * scale);
        }
        for (size_t b = 0; b < 3; b++) {
            int32_t total = 0;
            for (size_t i = 0; i < 32; i++) total += r.counted(*k, b * 32 + i);
            CHECK_EQ(r.total[b], total);
        }
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            std::vector<float> y = x;
            y[40] = bad;
            Rounded s(*k, y, 1, 96);
            CHECK(std::isnan(s.scale[1]));
            CHECK(!std::isnan(s.scale[0]) && !std::isnan(s.scale[2]));
            CHECK_EQ(s.total[1], 0);
            for (size_t i = 32; i < 64; i++) CHECK_EQ(s.value(*k, i), 0);
            CHECK_EQ(s.value(*k, 31), r.value(*k, 31));
            CHECK_EQ(s.value(*k, 64), r.value(*k, 64));
        }
    }
}

TEST(every_set_rounds_as_the_scalar_one_does) {
    const std::vector<float> x = random_values(32 * 64, 23);
    const QuantKernels &scalar = quant_kernels("scalar");
    const Rounded expected(scalar, x, 1, static_cast<int>(x.size()));
    for (const QuantKernels *k : all_sets()) {
        const Rounded r(*k, x, 1, static_cast<int>(x.size()));
        CHECK(r.scale == expected.scale);
        int different = 0;
        for (size_t i = 0; i < x.size(); i++) {
            const int step = r.value(*k, i) - expected.value(scalar, i);
            CHECK(std::abs(step) <= 1);
            different += step != 0;
        }
        CHECK(different <= static_cast<int>(x.size() / 128));  // halves: x * inverse rounded or not
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
