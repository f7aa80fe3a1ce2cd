#include "nn/lm/lm.h"

#include <cstring>
#include <thread>

#include "model/lm/code_predictor.h"
#include "model/lm/talker.h"
#include "model/model.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;
using kz::testing::noise;

namespace {

// The same random model in every form that the engine can hold it in.
enum class Form { kPacked, kGraph };
constexpr Form kForms[] = {Form::kPacked, Form::kGraph};

const Model &model(Form form) {
    static const testing::TinyModel files;
    static const auto packed = load_model(files.talker, files.codec, {.f32 = true});
    static const auto graph = load_model(files.talker, files.codec, {.f32 = true, .graph = true});
    return form == Form::kPacked ? *packed : *graph;
}

FloatBuffer embeds(int t) {
    FloatBuffer e(static_cast<size_t>(t) * 32);
    uint32_t seed = 41;
    for (float &x : e) x = noise(seed);
    return e;
}

constexpr size_t kOut = 32 + testing::kCodecVocab;  // hidden and logits

// Hidden state and logits after t positions given in the pieces asked for.
std::vector<float> run_talker(Form form, const std::vector<int> &pieces, Team &team,
                              int ggml_threads = 1) {
    Talker talker(model(form).talker, team, ggml_threads);
    TalkerState state(model(form).talker);
    int total = 0;
    for (const int p : pieces) total += p;
    const FloatBuffer e = embeds(total);
    std::vector<float> out(kOut);
    int at = 0;
    for (const int p : pieces) {
        const LmSequence s{&state.kv, e.data() + static_cast<ptrdiff_t>(at) * 32, p, out.data(),
                           out.data() + 32};
        CHECK(talker.forward({&s, 1}));
        at += p;
    }
    CHECK_EQ(state.kv.n_past, total);
    return out;
}

std::vector<float> run_talker(Form form, const std::vector<int> &pieces) {
    Team alone;
    return run_talker(form, pieces, alone);
}

bool equal_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST(packed_equals_the_graph) {
    for (const auto &pieces : std::vector<std::vector<int>>{{1}, {200}, {64, 1, 1}}) {
        const auto packed = run_talker(Form::kPacked, pieces),
                   graph = run_talker(Form::kGraph, pieces);
        CHECK(std::isfinite(packed[0]) && packed[0] != 0.0f);
        CHECK(max_difference(packed.data(), graph.data(), kOut) < 1e-4);
    }
}

TEST(talker_pieces_equal_the_whole) {
    for (const Form form : kForms) {
        const auto whole = run_talker(form, {200});
        for (const auto &pieces : std::vector<std::vector<int>>{
                 {1, 199}, {64, 64, 72}, {127, 1, 1, 71}, std::vector<int>(200, 1)}) {
            const auto got = run_talker(form, pieces);
            CHECK(max_difference(whole.data(), got.data(), kOut) < 1e-4);
            CHECK(form == Form::kGraph || equal_bits(whole, got));
        }
    }
}

TEST(packed_does_not_depend_on_helpers) {
    const auto one = run_talker(Form::kPacked, {37, 1, 1});
    Team team;
    const Helpers helpers(team, 3);
    while (team.helpers() < 3) std::this_thread::yield();
    CHECK(equal_bits(one, run_talker(Form::kPacked, {37, 1, 1}, team)));
}

#if !defined(__SANITIZE_THREAD__)
// The thread sanitizer does not see the barriers of OpenMP, so it would report every access of
// ggml's workers; the engine's own threads are tested under it in test_engine.cpp.
TEST(graph_does_not_depend_on_threads) {
    Team alone;
    CHECK(equal_bits(run_talker(Form::kGraph, {37, 1, 1}, alone, 1),
                     run_talker(Form::kGraph, {37, 1, 1}, alone, 3)));
}
#endif

// Streams of different ages share passes; each must get what it gets alone.
TEST(streams_do_not_depend_on_their_neighbours) {
    for (const Form form : kForms) {
        Team alone;
        Talker talker(model(form).talker, alone, 1);
        const FloatBuffer e = embeds(60);
        const int lengths[] = {1, 9, 40};
        std::vector<TalkerState> states(3, TalkerState(model(form).talker));
        std::vector<std::vector<float>> out(3, std::vector<float>(kOut));
        std::vector<LmSequence> prompts, steps;
        for (size_t i = 0; i < 3; i++)
            prompts.push_back({&states[i].kv, e.data(), lengths[i], nullptr, nullptr});
        CHECK(talker.forward(prompts));
        for (size_t i = 0; i < 3; i++)
            steps.push_back(
                {&states[i].kv, e.data() + lengths[i] * 32, 1, out[i].data(), out[i].data() + 32});
        CHECK(talker.forward(steps));
        for (size_t i = 0; i < 3; i++) CHECK(equal_bits(out[i], run_talker(form, {lengths[i], 1})));
    }
}

TEST(a_kept_prefix_equals_a_computed_one) {
    Team alone;
    Talker talker(model(Form::kPacked).talker, alone, 1);
    const FloatBuffer e = embeds(150);
    TalkerState first(model(Form::kPacked).talker), second(model(Form::kPacked).talker);
    std::vector<float> out(kOut);
    const LmSequence all{&first.kv, e.data(), 150, out.data(), out.data() + 32};
    CHECK(talker.forward({&all, 1}));
    second.kv.set_prefix(first.kv.prefix(140), 140);
    CHECK_EQ(second.kv.n_past, 140);
    std::vector<float> again(kOut);
    const LmSequence rest{&second.kv, e.data() + 140 * 32, 10, again.data(), again.data() + 32};
    CHECK(talker.forward({&rest, 1}));
    CHECK(equal_bits(out, again));
}

TEST(another_input_gives_another_output) {
    const auto a = run_talker(Form::kPacked, {9}), b = run_talker(Form::kPacked, {10});
    CHECK(max_difference(a.data(), b.data(), kOut) > 1e-3);
}

TEST(cached_code_predictor_equals_recomputing) {
    for (const Form form : kForms) {
        Team alone;
        CodePredictor cp(model(form).cp, alone, 1);
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
            CpFrame frame{e.data(), e.data() + 32, choose, codes[recompute].data(), recompute != 0};
            CHECK(cp.run({&frame, 1}));
        }
        CHECK(codes[0] == codes[1]);
        CHECK(max_difference(logits[0].data(), logits[1].data(), logits[0].size()) < 1e-4);
    }
}

TEST(stop_flag_stops_a_pass) {
    for (const Form form : kForms) {
        Team alone;
        Talker talker(model(form).talker, alone, 1);
        const std::atomic<bool> stop{true};
        const FloatBuffer e = embeds(5);
        std::vector<float> out(kOut);
        for (const bool stopped : {true, false}) {
            TalkerState state(model(form).talker);
            talker.lm().set_stop(stopped ? &stop : nullptr);
            const LmSequence s{&state.kv, e.data(), 5, out.data(), out.data() + 32};
            CHECK(talker.forward({&s, 1}) == !stopped);
        }
    }
}
