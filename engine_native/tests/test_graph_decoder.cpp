#include "model/codec/graph_decoder.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "decoder_runs.h"
#include "device_runs.h"

using namespace kz;
using namespace kz::testing;

namespace {

Codec codec(ggml_backend_dev_t where, int max_rows = 0) {
    const GgufFile file(files().codec);
    return load_codec(file, kernels(), {true, where, max_rows});
}

std::vector<float> decode(const Codec &codec, const std::vector<int32_t> &c,
                          const std::vector<int> &pieces) {
    const auto decoder = codec.make_decoder(nullptr, 1);
    const auto state = codec.make_state();
    return testing::decode(*decoder, *state, c, pieces);
}

int count(const Placement &p, const char *where, const char *op) {
    const auto found = p.nodes.find({where, op});
    return found == p.nodes.end() ? 0 : found->second;
}

int count(const Placement &p, const char *op) {
    return count(p, RowLimitedDevice::kName, op) + count(p, "CPU", op);
}

}  // namespace

TEST(the_decoder_graph_gives_the_samples_of_the_kernels) {
    const auto c = codes(14);  // more than twice the window of this model
    const auto expected = decode(codec(nullptr), c, {14});
    double energy = 0;
    for (const float x : expected) energy += x * x;
    CHECK(energy > 1);
    const Codec graph = codec(cpu_device());
    for (const auto &pieces : std::vector<std::vector<int>>{
             {14}, {1, 13}, {3, 1, 1, 9}, {7, 7}, std::vector<int>(14, 1)})
        CHECK(difference(decode(graph, c, pieces), expected) < kTolerance);
    // Chunks of the same lengths are the same bits.
    CHECK(decode(graph, c, {8, 4, 2}) == decode(graph, c, {14}));
}

TEST(the_stages_of_the_graph_are_those_of_the_kernels) {
    const auto c = codes(5);
    using Stages = std::map<std::string, std::vector<float>>;
    Stages stages[2];
    for (const bool graph : {false, true}) {
        const Codec form = codec(graph ? cpu_device() : nullptr);
        const auto decoder = form.make_decoder(nullptr, 1);
        const auto state = form.make_state();
        decoder->set_probe([&](const char *name, const float *x, int t, int width) {
            auto &values = stages[graph][name];
            values.insert(values.end(), x, x + static_cast<ptrdiff_t>(t) * width);
        });
        decode(*decoder, *state, c, {5});
    }
    CHECK_EQ(stages[0].size(), size_t{10});
    for (const auto &[name, values] : stages[0])
        CHECK(difference(values, stages[1][name]) < kTolerance);
}

TEST(the_graph_carries_its_state) {
    const Codec graph = codec(cpu_device());
    const auto c = codes(12);
    auto changed = c;
    for (size_t i = 7 * kBooks; i < changed.size(); i++) changed[i] = (changed[i] + 1) % kCodebook;
    const std::vector<int> frame_by_frame(12, 1);
    const auto a = decode(graph, c, frame_by_frame), b = decode(graph, changed, frame_by_frame);
    CHECK(std::memcmp(a.data(), b.data(), sizeof(float) * 7 * kFrame) == 0);
    CHECK(max_difference(a.data() + 7 * kFrame, b.data() + 7 * kFrame, 5 * kFrame) > 1e-3);
    // Forgetting the state must be audible.
    const std::vector<int32_t> tail(c.begin() + 2 * kBooks, c.begin() + 4 * kBooks);
    const auto alone = decode(graph, tail, {1, 1});
    CHECK(max_difference(a.data() + 2 * kFrame, alone.data(), alone.size()) > 1e-3);
}

TEST(streams_that_take_turns_keep_their_states) {
    const Codec graph = codec(device().handle());
    const auto decoder = graph.make_decoder(nullptr, 1);
    const auto one = graph.make_state(), two = graph.make_state();
    const auto c = codes(6);
    const std::vector<int32_t> other(c.rbegin(), c.rend());
    const auto expected = decode(graph, c, {2, 2, 2}),
               expected_other = decode(graph, other, {1, 5});
    std::vector<float> first, second;
    const auto turn = [&](std::vector<float> &out, DecoderState &state,
                          const std::vector<int32_t> &all, int from, int n) {
        const std::vector<int32_t> part(all.begin() + from * kBooks,
                                        all.begin() + (from + n) * kBooks);
        const auto pcm = decode(*decoder, state, part, {n});
        out.insert(out.end(), pcm.begin(), pcm.end());
    };
    turn(first, *one, c, 0, 2);
    turn(second, *two, other, 0, 1);
    {
        const auto short_lived = graph.make_state();
        decode(*decoder, *short_lived, c, {6});
    }
    turn(first, *one, c, 2, 2);
    turn(first, *one, c, 4, 2);
    turn(second, *two, other, 1, 5);
    CHECK(first == expected);
    CHECK(second == expected_other);
    one->reset();
    first.clear();
    for (int i = 0; i < 6; i += 2) turn(first, *one, c, i, 2);
    CHECK(first == expected);

    const auto elsewhere = graph.make_decoder(nullptr, 1);
    std::vector<float> pcm(kFrame);
    CHECK_ERROR(elsewhere->decode(*one, c.data(), 1, pcm.data(), nullptr), KZ_ERR_INTERNAL,
                "another decoder");
}

TEST(a_stream_goes_on_when_another_finds_no_memory) {
    const Codec graph = codec(device().handle());
    const auto decoder = graph.make_decoder(nullptr, 1);
    const auto one = graph.make_state(), two = graph.make_state();
    const auto c = codes(4);
    const auto expected = decode(graph, c, {2, 2});
    const std::vector<int32_t> begin(c.begin(), c.begin() + 2 * kBooks),
        end(c.begin() + 2 * kBooks, c.end());
    std::vector<float> pcm = decode(*decoder, *one, begin, {2}), none(2 * kFrame);
    RowLimitedDevice::get().memory_limit = RowLimitedDevice::get().allocated.load();
    for (int i = 0; i < 2; i++) {
        CHECK_ERROR(decoder->decode(*two, begin.data(), 2, none.data(), nullptr), KZ_ERR_MEMORY,
                    "device Rows0 has no");
    }
    const auto rest = decode(*decoder, *one, end, {2});
    pcm.insert(pcm.end(), rest.begin(), rest.end());
    CHECK(pcm == expected);
    device();
    CHECK(decode(*decoder, *two, c, {2, 2}) == expected);
}

TEST(a_state_that_was_lost_wants_a_reset) {
    const Codec graph = codec(device().handle());
    const auto decoder = graph.make_decoder(nullptr, 1);
    const auto state = graph.make_state();
    const auto c = codes(3);
    std::vector<float> pcm(3 * kFrame);
    const auto again = [&] { decoder->decode(*state, c.data(), 3, pcm.data(), nullptr); };
    const auto expected = decode(graph, c, {3});
    for (const bool stopped : {false, true}) {
        const std::atomic<bool> stop{stopped};
        decoder->set_stop(&stop);
        if (stopped) {
            CHECK(!decoder->decode(*state, c.data(), 3, pcm.data(), nullptr));
        } else {
            RowLimitedDevice::get().graphs_until_failure = 1;  // of the two chunks
            CHECK_ERROR(again(), KZ_ERR_COMPUTE, "device Rows0: a graph failed");
        }
        device();
        decoder->set_stop(nullptr);
        CHECK_ERROR(again(), KZ_ERR_COMPUTE, "expected a reset");
        state->reset();
        CHECK(decode(*decoder, *state, c, {3}) == expected);
        state->reset();
    }
}

TEST(graphs_are_kept) {
    const Codec graph = codec(device().handle());
    const auto decoder = graph.make_decoder(nullptr, 1);
    const auto state = graph.make_state();
    const auto c = codes(15);
    decode(*decoder, *state, c, {8, 4, 2, 1});
    const int before = RowLimitedDevice::get().allocations;
    CHECK(before > 4);
    decode(*decoder, *state, c, {1, 2, 4, 8});
    CHECK_EQ(RowLimitedDevice::get().allocations.load(), before);
}

TEST(a_graph_has_room_for_any_number_of_blocks) {
    const TempFolder folder;
    const std::string path = folder.file("codec.gguf");
    GgufWriter w;
    w.still_blocks = 12;
    write_codec(w, path);
    const GgufFile file(path);
    const auto c = codes(1);
    const Codec own = load_codec(file, kernels(), {true, nullptr, 0});
    const Codec split = load_codec(file, kernels(), {true, cpu_device(), kLeastRows});
    CHECK(difference(decode(split, c, {1}), decode(own, c, {1})) < kTolerance);
}

TEST(split_products_are_placed_on_a_device_that_refuses_many_rows) {
    const auto c = codes(9);
    const auto expected = decode(codec(nullptr), c, {1, 8});
    for (const int rows : {1024, 300, 97, kLeastRows}) {
        device().max_rows = rows;
        {  // without: the wide products fall back
            const Codec whole = codec(handle());
            GraphDecoder decoder(std::get<GraphWeights>(whole.form), 1);
            const Placement p = decoder.placement(8);
            CHECK(count(p, "CPU", "MUL_MAT") >= 20);
            CHECK(count(p, RowLimitedDevice::kName, "MUL_MAT") >= 20);
            CHECK(p.splits > 4 && p.copies > 4 && p.copied_bytes > 100'000);
            CHECK(std::get<GraphWeights>(whole.form).tensors->host_bytes() > 0);
            CHECK(difference(decode(whole, c, {1, 8}), expected) < kTolerance);
        }
        const Codec split = codec(handle(), rows);
        const auto &weights = std::get<GraphWeights>(split.form);
        CHECK_EQ(weights.tensors->host_bytes(), int64_t{0});
        GraphDecoder decoder(weights, 1);
        for (const int frames : {1, 8}) {
            const Placement p = decoder.placement(frames);
            CHECK_EQ(count(p, "CPU", "MUL_MAT"), 0);
            CHECK(count(p, RowLimitedDevice::kName, "MUL_MAT") > 100);
            CHECK_EQ(count(p, "CONCAT"), count(p, RowLimitedDevice::kName, "CONCAT"));
            CHECK_EQ(p.splits, 1);
        }
        CHECK(difference(decode(split, c, {1, 8}), expected) < kTolerance);
    }
}

TEST(what_a_device_does_not_know_falls_back) {
    const auto c = codes(3);
    const auto expected = decode(codec(nullptr), c, {3});
    for (const ggml_op op : {GGML_OP_SIN, GGML_OP_CPY, GGML_OP_CONCAT, GGML_OP_ROPE}) {
        device().refused_op = op;
        const Codec graph = codec(handle());
        CHECK(difference(decode(graph, c, {1, 2}), expected) < kTolerance);
        GraphDecoder decoder(std::get<GraphWeights>(graph.form), 1);
        const Placement p = decoder.placement(2);
        CHECK(count(p, "CPU", ggml_op_name(op)) > 0);
        CHECK_EQ(count(p, RowLimitedDevice::kName, ggml_op_name(op)), 0);
        CHECK(count(p, RowLimitedDevice::kName, "MUL_MAT") > 100);
    }
}

TEST(stop_flag_stops_graphs) {
    const Codec graph = codec(device().handle());
    const std::atomic<bool> stop{true};
    const auto decoder = graph.make_decoder(nullptr, 1);
    const auto state = graph.make_state();
    decoder->set_stop(&stop);
    std::vector<float> pcm(kFrame);
    CHECK(!decoder->decode(*state, codes(1).data(), 1, pcm.data(), nullptr));
}
