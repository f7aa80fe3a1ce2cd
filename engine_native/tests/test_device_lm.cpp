#include "nn/lm/device_lm.h"

#include "device_runs.h"
#include "lm_runs.h"

using namespace kz;
using namespace kz::testing;

TEST(a_talker_on_a_device_equals_the_kernels) {
    const auto here = load(cpu_device()), there = load(device().handle());
    for (const auto &pieces : std::vector<std::vector<int>>{
             {1},
             {200},
             {64, 1, 1},
             {37, 1, 1},
             {1, 199},
             {127, 1, 1, 71},
             std::vector<int>(140, 1)}) {  // caches grow from 128 to 256 positions
        const auto expected = run(own_kernels(), pieces);
        CHECK(std::isfinite(expected[0]) && expected[0] != 0.0f);
        CHECK(difference(run(*here, pieces), expected) < kTolerance);
        CHECK(difference(run(*there, pieces), expected) < kTolerance);
    }
    CHECK(difference(run(*there, {9}), run(*there, {10})) > 1e-3);
}

TEST(a_device_may_take_single_positions_only) {
    RowLimitedDevice &d = device();
    d.limited_op = GGML_OP_SET_ROWS;
    d.limited_rows = 16;  // the values of one position
    const auto model = load(d.handle());
    for (const auto &pieces : std::vector<std::vector<int>>{{1, 1}, {70, 1}})
        CHECK(difference(run(*model, pieces), run(own_kernels(), pieces)) < kTolerance);
}

TEST(memory_of_ended_streams_is_given_to_others) {
    RowLimitedDevice &d = device();
    const auto model = load(d.handle());
    Team alone;
    Talker talker(model->talker, alone, 1);
    const size_t before = d.allocated;
    {
        std::vector<TalkerState> ended(2, TalkerState(model->talker));
        for (TalkerState &s : ended) run(talker, s.kv, {200});
    }
    CHECK(d.allocated > before + 200'000);  // kept for the next streams
    const size_t large = 2 * 2 * 4096 * 16 * sizeof(float);
    d.memory_limit = before + large + 1000;
    TalkerState state(model->talker);
    talker.lm().reserve(state.kv, 2000);
    CHECK(d.allocated >= before + large);
    CHECK_ERROR(talker.lm().reserve(state.kv, 4096), KZ_ERR_MEMORY, "a stream's state");
}

TEST(streams_on_a_device_do_not_depend_on_their_neighbours) {
    check_neighbours(*load(device().handle()));
}

TEST(a_code_predictor_on_a_device_equals_the_kernels) {
    const auto there = load(device().handle());
    const PredictedFrame expected = predict(own_kernels(), false);
    for (const bool recompute : {false, true}) {
        const PredictedFrame got = predict(*there, recompute);
        CHECK(got.codes == expected.codes);
        CHECK(difference(got.logits, expected.logits) < kTolerance);
    }
}

TEST(a_cache_belongs_to_one_language_model) {
    const auto model = load(device().handle());
    Team alone;
    Talker talker(model->talker, alone, 1);
    TalkerState state(model->talker);
    run(talker, state.kv, {3});
    {
        Talker other(model->talker, alone, 1);
        CHECK_ERROR(other.lm().reserve(state.kv, 4), KZ_ERR_INTERNAL, "another language model");
    }
    auto gone = std::make_unique<Talker>(model->talker, alone, 1);
    TalkerState late(model->talker);
    run(*gone, late.kv, {3});
    gone.reset();  // what the cache holds outlives it
}

TEST(stop_flag_stops_graphs) {
    const auto model = load(device().handle());
    const std::atomic<bool> stop{true};
    Team alone;
    Talker talker(model->talker, alone, 1);
    TalkerState state(model->talker);
    const FloatBuffer e = embeds(5);
    const LmSequence s{&state.kv, e.data(), 5, nullptr, nullptr};
    talker.lm().set_stop(&stop);
    CHECK(!talker.forward({&s, 1}));
}
