#include "nn/transformer.h"

#include <cstring>

#include "engine/model.h"
#include "model/code_predictor.h"
#include "model/talker.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;
using kz::testing::noise;

namespace {

const Model &model() {
    static const testing::TinyModel files;
    static const auto loaded = load_model(files.talker, files.codec, true);
    return *loaded;
}

FloatBuffer embeds(int t) {
    FloatBuffer e(static_cast<size_t>(t) * 32);
    uint32_t seed = 41;
    for (float &x : e) x = noise(seed);
    return e;
}

// Hidden state and logits after t positions given in the pieces asked for.
std::vector<float> run_talker(const std::vector<int> &pieces, int threads) {
    Backend backend(threads);
    Talker talker(model().talker, *model().kernels, backend);
    TalkerState state(model().talker);
    int total = 0;
    for (const int p : pieces) total += p;
    const FloatBuffer e = embeds(total);
    std::vector<float> out(32 + testing::kCodecVocab);
    int at = 0;
    for (const int p : pieces) {
        CHECK(talker.forward(state, e.data() + static_cast<ptrdiff_t>(at) * 32, p, out.data(),
                             out.data() + 32));
        at += p;
    }
    CHECK_EQ(state.kv.n_past, total);
    return out;
}

}  // namespace

TEST(talker_pieces_equal_the_whole) {
    const auto whole = run_talker({200}, 1);
    CHECK(std::isfinite(whole[0]) && whole[0] != 0.0f);
    for (const auto &pieces :
         std::vector<std::vector<int>>{{1, 199}, {64, 64, 72}, {127, 1, 1, 71}}) {
        const auto got = run_talker(pieces, 1);
        CHECK(max_difference(whole.data(), got.data(), got.size()) < 1e-4);
    }
    std::vector<int> steps(200, 1);
    const auto stepped = run_talker(steps, 1);
    CHECK(max_difference(whole.data(), stepped.data(), stepped.size()) < 1e-4);
}

#if !defined(__SANITIZE_THREAD__)
// The thread sanitizer does not see the barriers of OpenMP, so it would report every access of
// ggml's workers; the engine's own threads are tested under it in test_engine.cpp.
TEST(talker_does_not_depend_on_threads) {
    const auto one = run_talker({37, 1, 1}, 1);
    const auto three = run_talker({37, 1, 1}, 3);
    CHECK(std::memcmp(one.data(), three.data(), sizeof(float) * one.size()) == 0);
}
#endif

TEST(another_input_gives_another_output) {
    const auto a = run_talker({9}, 1), b = run_talker({10}, 1);
    CHECK(max_difference(a.data(), b.data(), a.size()) > 1e-3);
}

TEST(cached_code_predictor_equals_recomputing) {
    Backend backend(1);
    CodePredictor cp(model().cp, *model().kernels, backend);
    const FloatBuffer e = embeds(2);
    const int size = testing::kCodebook;
    std::vector<float> logits[2];
    std::vector<int32_t> codes[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        codes[recompute].resize(testing::kSteps);
        const auto choose = [&](int, const float *l) {
            logits[recompute].insert(logits[recompute].end(), l, l + size);
            return static_cast<int>(std::max_element(l, l + size) - l);
        };
        CHECK(cp.run(e.data(), e.data() + 32, choose, codes[recompute].data(), recompute != 0));
    }
    CHECK(codes[0] == codes[1]);
    CHECK(max_difference(logits[0].data(), logits[1].data(), logits[0].size()) < 1e-4);
}

TEST(abort_flag_stops_a_graph) {
    Backend backend(1);
    Talker talker(model().talker, *model().kernels, backend);
    TalkerState state(model().talker);
    const std::atomic<bool> stop{true};
    backend.set_abort_flag(&stop);
    std::vector<float> out(32 + testing::kCodecVocab);
    CHECK(!talker.forward(state, embeds(5).data(), 5, out.data(), out.data() + 32));
    backend.set_abort_flag(nullptr);
    CHECK(talker.forward(state, embeds(5).data(), 5, out.data(), out.data() + 32));
}
