#include "model/lm/sampler.h"

#include <map>

#include "testing.h"

using namespace kz;

namespace {

std::vector<float> probabilities(const kz_sampling &s, const std::vector<float> &logits,
                                 const std::vector<uint8_t> &suppressed = {},
                                 const std::vector<int32_t> &history = {}) {
    std::vector<float> p(logits.size());
    Sampler(s, "talker")
        .probabilities(logits.data(), static_cast<int>(logits.size()),
                       suppressed.empty() ? nullptr : suppressed.data(), history.data(),
                       static_cast<int>(history.size()), p.data());
    return p;
}

const std::vector<float> kLogits{1.0f, 3.0f, -2.0f, 2.0f, 3.0f, 0.0f};

}  // namespace

TEST(top_k_keeps_ties) {
    const auto p = probabilities({1.0f, 1, 1.0f, 1.0f, 0}, kLogits);
    CHECK_NEAR(p[1], 0.5, 1e-6);
    CHECK_NEAR(p[4], 0.5, 1e-6);
    CHECK(p[3] == 0.0f);
}

TEST(top_p_keeps_at_least_one) {
    const auto p = probabilities({1.0f, 0, 1e-6f, 1.0f, 0}, {0.0f, 5.0f, 1.0f});
    CHECK_NEAR(p[1], 1.0, 1e-6);
}

TEST(penalty_counts_each_id_once) {
    const auto once = probabilities({1.0f, 0, 1.0f, 2.0f, 0}, kLogits, {}, {1, 2});
    const auto thrice = probabilities({1.0f, 0, 1.0f, 2.0f, 0}, kLogits, {}, {1, 1, 2, 1});
    for (size_t i = 0; i < once.size(); i++) CHECK_NEAR(once[i], thrice[i], 0);
    // 3 / 2 = 1.5 and -2 * 2 = -4
    CHECK_NEAR(once[1] / once[3], std::exp(1.5 - 2.0), 1e-5);
    CHECK_NEAR(once[2] / once[5], std::exp(-4.0), 1e-6);
}

TEST(penalty_window_forgets) {
    const auto p = probabilities({1.0f, 0, 1.0f, 2.0f, 1}, kLogits, {}, {1, 2});
    CHECK_NEAR(p[1], p[4], 1e-7);
}

TEST(suppressed_ids_are_never_drawn) {
    Random random(1);
    Sampler sampler({1.0f, 0, 1.0f, 1.0f, 0}, "talker");
    const std::vector<uint8_t> suppressed{0, 1, 0, 0, 1, 0};
    for (int i = 0; i < 1000; i++) {
        const int id = sampler.draw(kLogits.data(), 6, suppressed.data(), nullptr, 0, random);
        CHECK(id != 1 && id != 4);
    }
}

TEST(draws_follow_the_probabilities) {
    Random random(5);
    Sampler sampler({0.8f, 4, 1.0f, 1.0f, 0}, "talker");
    const auto p = probabilities({0.8f, 4, 1.0f, 1.0f, 0}, kLogits);
    std::map<int, int> counts;
    const int n = 20000;
    for (int i = 0; i < n; i++)
        counts[sampler.draw(kLogits.data(), 6, nullptr, nullptr, 0, random)]++;
    for (int i = 0; i < 6; i++) {
        const double expected = p[static_cast<size_t>(i)];
        // Five standard deviations of a binomial share.
        CHECK_NEAR(static_cast<double>(counts[i]) / n, expected,
                   5 * std::sqrt(expected * (1 - expected) / n) + 1e-9);
    }
}

TEST(zero_temperature_takes_the_largest) {
    Random random(1);
    CHECK_EQ(Sampler({0.0f, 50, 1.0f, 1.0f, 0}, "talker")
                 .draw(kLogits.data(), 6, nullptr, nullptr, 0, random),
             1);
}

TEST(nan_is_an_error_not_a_code) {
    Random random(1);
    const std::vector<float> logits{0.0f, NAN, 1.0f};
    CHECK_ERROR(Sampler({0.9f, 50, 1.0f, 1.0f, 0}, "talker")
                    .draw(logits.data(), 3, nullptr, nullptr, 0, random),
                KZ_ERR_COMPUTE, "talker: the logits hold NaN");
    CHECK_ERROR(Sampler({0.0f, 50, 1.0f, 1.0f, 0}, "talker")
                    .draw(logits.data(), 3, nullptr, nullptr, 0, random),
                KZ_ERR_COMPUTE, "talker: the logits hold NaN");
}

TEST(tiny_temperatures_are_greedy_not_garbage) {
    Random random(1);
    for (const float t : {1e-38f, 1e-10f, 1e-3f}) {
        const int id = Sampler({t, 50, 1.0f, 1.05f, 0}, "talker")
                           .draw(kLogits.data(), 6, nullptr, nullptr, 0, random);
        CHECK(id == 1 || id == 4);
    }
}

TEST(seeds_give_their_own_numbers) {
    Random a(3), b(3), c(4), zero(0);
    CHECK_EQ(a.next(), b.next());
    CHECK(a.next() != c.next());
    CHECK(zero.next() != 0);
    for (int i = 0; i < 1000; i++) CHECK(a.uniform() >= 0 && a.uniform() < 1);
}

TEST(settings_out_of_range_are_named) {
    CHECK_ERROR(check_sampling({NAN, 50, 1.0f, 1.0f, 0}, "talker"), KZ_ERR_ARGUMENT, "temperature");
    CHECK_ERROR(check_sampling({0.9f, -1, 1.0f, 1.0f, 0}, "talker"), KZ_ERR_ARGUMENT, "top_k");
    CHECK_ERROR(check_sampling({0.9f, 50, 0.0f, 1.0f, 0}, "talker"), KZ_ERR_ARGUMENT, "top_p");
    CHECK_ERROR(check_sampling({0.9f, 50, 1.0f, 0.0f, 0}, "talker"), KZ_ERR_ARGUMENT,
                "repetition_penalty");
    CHECK_ERROR(check_sampling({0.9f, 50, 1.0f, 1.0f, -1}, "talker"), KZ_ERR_ARGUMENT,
                "rep_window");
}
