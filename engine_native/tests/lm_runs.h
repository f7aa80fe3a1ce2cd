// Runs of the language models of the tiny model, in whatever form a model holds them.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/lm/code_predictor.h"
#include "model/lm/talker.h"
#include "model/model.h"
#include "testing.h"
#include "tiny_model.h"

namespace kz::testing {

constexpr size_t kOut = 32 + kCodecVocab;  // hidden and logits

inline bool equal_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline FloatBuffer embeds(int t) {
    FloatBuffer e(static_cast<size_t>(t) * 32);
    uint32_t seed = 41;
    for (float &x : e) x = noise(seed);
    return e;
}

// Hidden state and logits after positions given in the pieces asked for.
inline std::vector<float> run(Talker &talker, KvCache &kv, const std::vector<int> &pieces) {
    int total = 0, at = 0;
    for (const int p : pieces) total += p;
    const FloatBuffer e = embeds(total);
    std::vector<float> out(kOut);
    for (const int p : pieces) {
        const LmSequence s{&kv, e.data() + static_cast<ptrdiff_t>(at) * 32, p, out.data(),
                           out.data() + 32};
        CHECK(talker.forward({&s, 1}));
        at += p;
    }
    CHECK_EQ(kv.n_past, total);
    return out;
}

inline std::vector<float> run(const Model &model, const std::vector<int> &pieces, Team &team,
                              int ggml_threads = 1) {
    Talker talker(model.talker, team, ggml_threads);
    TalkerState state(model.talker);
    return run(talker, state.kv, pieces);
}

inline std::vector<float> run(const Model &model, const std::vector<int> &pieces) {
    Team alone;
    return run(model, pieces, alone);
}

// Streams of different ages share calls; each must get what it gets alone.
inline void check_neighbours(const Model &model) {
    Team alone;
    Talker talker(model.talker, alone, 1);
    const int lengths[] = {1, 9, 40};
    const FloatBuffer e = embeds(60);
    for (int round = 0; round < 2; round++) {  // the second one in memory that has been used
        std::vector<TalkerState> states(3, TalkerState(model.talker));
        std::vector<std::vector<float>> out(3, std::vector<float>(kOut));
        std::vector<LmSequence> prompts, steps;
        for (size_t i = 0; i < 3; i++)
            prompts.push_back({&states[i].kv, e.data(), lengths[i], nullptr, nullptr});
        CHECK(talker.forward(prompts));
        for (size_t i = 0; i < 3; i++)
            steps.push_back(
                {&states[i].kv, e.data() + lengths[i] * 32, 1, out[i].data(), out[i].data() + 32});
        CHECK(talker.forward(steps));
        for (size_t i = 0; i < 3; i++) CHECK(equal_bits(out[i], run(model, {lengths[i], 1})));
    }
}

// The codes of a frame, each the likeliest, and the logits of every pass.
struct PredictedFrame {
    std::vector<int32_t> codes = std::vector<int32_t>(kSteps);
    std::vector<float> logits;
};

inline PredictedFrame predict(const Model &model, bool recompute) {
    Team alone;
    CodePredictor cp(model.cp, alone, 1);
    const FloatBuffer e = embeds(2);
    PredictedFrame r;
    const auto choose = [&](int, const float *l) {
        r.logits.insert(r.logits.end(), l, l + kCodebook);
        return static_cast<int>(std::max_element(l, l + kCodebook) - l);
    };
    CpFrame frame{e.data(), e.data() + 32, choose, r.codes.data(), recompute};
    CHECK(cp.run({&frame, 1}));
    return r;
}

}  // namespace kz::testing
