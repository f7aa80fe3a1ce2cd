#include "nn/lm/lm.h"

#include <thread>

#include "lm_runs.h"

using namespace kz;
using namespace kz::testing;

namespace {

// The same random model in every form that the engine can hold it in.
enum class Form { kPacked, kGraph };
constexpr Form kForms[] = {Form::kPacked, Form::kGraph};

const Model &model(Form form) {
    static const TinyModel files;
    static const auto packed = load_model(files.talker, files.codec, {.f32 = true});
    static const auto graph = load_model(files.talker, files.codec, {.f32 = true, .graph = true});
    return form == Form::kPacked ? *packed : *graph;
}

}  // namespace

TEST(packed_equals_the_graph) {
    for (const auto &pieces : std::vector<std::vector<int>>{{1}, {200}, {64, 1, 1}}) {
        const auto packed = run(model(Form::kPacked), pieces),
                   graph = run(model(Form::kGraph), pieces);
        CHECK(std::isfinite(packed[0]) && packed[0] != 0.0f);
        CHECK(max_difference(packed.data(), graph.data(), kOut) < 1e-4);
    }
}

TEST(talker_pieces_equal_the_whole) {
    for (const Form form : kForms) {
        const auto whole = run(model(form), {200});
        for (const auto &pieces : std::vector<std::vector<int>>{
                 {1, 199}, {64, 64, 72}, {127, 1, 1, 71}, std::vector<int>(200, 1)}) {
            const auto got = run(model(form), pieces);
            CHECK(max_difference(whole.data(), got.data(), kOut) < 1e-4);
            CHECK(form == Form::kGraph || equal_bits(whole, got));
        }
    }
}

TEST(packed_does_not_depend_on_helpers) {
    const Model &packed = model(Form::kPacked);
    const auto one = run(packed, {37, 1, 1});
    Team team;
    const Helpers helpers(team, 3);
    while (team.helpers() < 3) std::this_thread::yield();
    CHECK(equal_bits(one, run(packed, {37, 1, 1}, team)));
}

#if !defined(__SANITIZE_THREAD__)
// The thread sanitizer does not see the barriers of OpenMP, so it would report every access of
// ggml's workers; the engine's own threads are tested under it in test_engine.cpp.
TEST(graph_does_not_depend_on_threads) {
    Team alone;
    const Model &graph = model(Form::kGraph);
    CHECK(equal_bits(run(graph, {37, 1, 1}, alone, 1), run(graph, {37, 1, 1}, alone, 3)));
}
#endif

TEST(streams_do_not_depend_on_their_neighbours) {
    for (const Form form : kForms) check_neighbours(model(form));
}

TEST(a_kept_prefix_equals_a_computed_one) {
    Team alone;
    const TalkerWeights &weights = model(Form::kPacked).talker;
    Talker talker(weights, alone, 1);
    const FloatBuffer e = embeds(150);
    TalkerState first(weights), second(weights);
    const auto out = run(talker, first.kv, {150});
    second.kv.set_prefix(first.kv.prefix(140), 140);
    CHECK_EQ(second.kv.n_past, 140);
    std::vector<float> again(kOut);
    const LmSequence rest{&second.kv, e.data() + 140 * 32, 10, again.data(), again.data() + 32};
    CHECK(talker.forward({&rest, 1}));
    CHECK(equal_bits(out, again));
}

TEST(another_input_gives_another_output) {
    const auto a = run(model(Form::kPacked), {9}), b = run(model(Form::kPacked), {10});
    CHECK(max_difference(a.data(), b.data(), kOut) > 1e-3);
}

TEST(cached_code_predictor_equals_recomputing) {
    for (const Form form : kForms) {
        const PredictedFrame cached = predict(model(form), false),
                             again = predict(model(form), true);
        CHECK(cached.codes == again.codes);
        CHECK_EQ(cached.logits.size(), again.logits.size());
        CHECK(max_difference(cached.logits.data(), again.logits.data(), again.logits.size()) <
              1e-4);
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
