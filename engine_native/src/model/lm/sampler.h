// Draws a code from logits as the reference implementation's processor chain does: repetition
// penalty, suppression, temperature, top-k, top-p, draw.
#pragma once

#include <cstdint>
#include <vector>

#include "kazeia.h"

namespace kz {

// xorshift32: one stream of numbers per utterance, the same on every machine.
class Random {
  public:
    explicit Random(uint64_t seed);
    uint32_t next();
    // [0, 1)
    double uniform() { return next() * (1.0 / 4294967296.0); }

  private:
    uint32_t state_;
};

void check_sampling(const kz_sampling &s, const char *part);

class Sampler {
  public:
    // part: whose logits these are, for messages.
    Sampler(const kz_sampling &settings, const char *part) : s_(settings), part_(part) {}

    // Applies everything but the draw.  suppressed may be nullptr; history: codes drawn so far.
    // probs [n] sums to 1, excluded ids are exactly 0.
    void probabilities(const float *logits, int n, const uint8_t *suppressed,
                       const int32_t *history, int n_history, float *probs);

    // The code drawn; the largest logit when temperature is 0.  Throws KZ_ERR_COMPUTE on a NaN
    // logit.
    int draw(const float *logits, int n, const uint8_t *suppressed, const int32_t *history,
             int n_history, Random &random);

  private:
    // scores_ = logits after penalty and suppression (-inf)
    void penalised(const float *logits, int n, const uint8_t *suppressed, const int32_t *history,
                   int n_history);

    kz_sampling s_;
    const char *part_;
    std::vector<float> scores_, sorted_, probs_;
    std::vector<int32_t> order_;
    std::vector<uint8_t> seen_;
};

}  // namespace kz
