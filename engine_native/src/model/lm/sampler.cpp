#include "model/lm/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/status.h"

namespace kz {

Random::Random(uint64_t seed) {
    // splitmix64 spreads neighbouring seeds; xorshift must not start at 0.
    uint64_t z = seed + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    state_ = static_cast<uint32_t>((z ^ (z >> 31)) >> 16);
    if (state_ == 0) state_ = 0x6b7a6569u;
}

uint32_t Random::next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
}

void check_sampling(const kz_sampling &s, const char *part) {
    if (!(s.temperature >= 0.0f) || !(s.temperature <= 100.0f)) {
        fail(KZ_ERR_ARGUMENT, "%s temperature is %g, expected 0..100", part,
             static_cast<double>(s.temperature));
    }
    if (s.top_k < 0)
        fail(KZ_ERR_ARGUMENT, "%s top_k is %d, expected 0 (off) or more", part, s.top_k);
    if (!(s.top_p > 0.0f) || !(s.top_p <= 1.0f)) {
        fail(KZ_ERR_ARGUMENT, "%s top_p is %g, expected more than 0 and at most 1", part,
             static_cast<double>(s.top_p));
    }
    if (!(s.repetition_penalty > 0.0f) || !(s.repetition_penalty <= 100.0f)) {
        fail(KZ_ERR_ARGUMENT, "%s repetition_penalty is %g, expected more than 0 and at most 100",
             part, static_cast<double>(s.repetition_penalty));
    }
    if (s.rep_window < 0)
        fail(KZ_ERR_ARGUMENT, "%s rep_window is %d, expected 0 (all) or more", part, s.rep_window);
}

void Sampler::penalised(const float *logits, int n, const uint8_t *suppressed,
                        const int32_t *history, int n_history) {
    scores_.assign(logits, logits + n);
    for (int i = 0; i < n; i++) {
        if (std::isnan(logits[i]) || logits[i] == INFINITY) {
            fail(KZ_ERR_COMPUTE, "%s: the logits hold NaN or infinity (first at id %d of %d)",
                 part_, i, n);
        }
    }
    if (s_.repetition_penalty != 1.0f) {
        const int first = s_.rep_window > 0 ? std::max(0, n_history - s_.rep_window) : 0;
        seen_.assign(static_cast<size_t>(n), 0);
        for (int i = first; i < n_history; i++) {
            const int id = history[i];
            if (id < 0 || id >= n || seen_[static_cast<size_t>(id)]) continue;
            seen_[static_cast<size_t>(id)] = 1;
            float &x = scores_[static_cast<size_t>(id)];
            x = x < 0 ? x * s_.repetition_penalty : x / s_.repetition_penalty;
        }
    }
    if (suppressed) {
        for (int i = 0; i < n; i++) {
            if (suppressed[i]) scores_[static_cast<size_t>(i)] = -INFINITY;
        }
    }
}

void Sampler::probabilities(const float *logits, int n, const uint8_t *suppressed,
                            const int32_t *history, int n_history, float *probs) {
    penalised(logits, n, suppressed, history, n_history);
    if (s_.temperature == 0.0f) {
        std::fill(probs, probs + n, 0.0f);
        probs[std::max_element(scores_.begin(), scores_.end()) - scores_.begin()] = 1.0f;
        return;
    }
    // The largest becomes 0 first: a tiny temperature must not overflow.
    const float largest = *std::max_element(scores_.begin(), scores_.end());
    for (float &x : scores_) x = (x - largest) / s_.temperature;
    if (s_.top_k > 0 && s_.top_k < n) {
        // Everything equal to the k-th largest stays, as in the reference.
        sorted_ = scores_;
        std::nth_element(sorted_.begin(), sorted_.begin() + (s_.top_k - 1), sorted_.end(),
                         std::greater<float>());
        const float least = sorted_[static_cast<size_t>(s_.top_k - 1)];
        for (float &x : scores_) {
            if (x < least) x = -INFINITY;
        }
    }
    const auto softmax = [&] {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += probs[i] = std::exp(scores_[static_cast<size_t>(i)]);
        for (int i = 0; i < n; i++) probs[i] = static_cast<float>(probs[i] / sum);
    };
    softmax();
    if (s_.top_p < 1.0f) {
        // Ascending, the higher id first among equals: whatever lies wholly below 1 - top_p goes,
        // the largest always stays.
        order_.resize(static_cast<size_t>(n));
        std::iota(order_.begin(), order_.end(), 0);
        std::sort(order_.begin(), order_.end(), [&](int a, int b) {
            const float x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
            return x < y || (x == y && a > b);
        });
        float cumulative = 0;
        for (size_t i = 0; i + 1 < order_.size(); i++) {
            cumulative += probs[order_[i]];
            if (cumulative > 1.0f - s_.top_p) break;
            scores_[static_cast<size_t>(order_[i])] = -INFINITY;
        }
        softmax();
    }
}

int Sampler::draw(const float *logits, int n, const uint8_t *suppressed, const int32_t *history,
                  int n_history, Random &random) {
    if (s_.temperature == 0.0f) {
        penalised(logits, n, suppressed, history, n_history);
        return static_cast<int>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
    }
    probs_.resize(static_cast<size_t>(n));
    probabilities(logits, n, suppressed, history, n_history, probs_.data());
    const double target = random.uniform();
    double sum = 0;
    int last = 0;
    for (int i = 0; i < n; i++) {
        if (probs_[static_cast<size_t>(i)] <= 0.0f) continue;
        last = i;
        sum += probs_[static_cast<size_t>(i)];
        if (sum > target) return i;
    }
    return last;  // rounding left the sum a hair below the target
}

}  // namespace kz
