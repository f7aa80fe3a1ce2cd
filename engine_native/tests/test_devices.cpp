// Parts of the model as ggml graphs: on ggml's processor device, where they are compared with the
// engine's own kernels, and on a device that refuses what it is told to refuse.
#include "runtime/devices.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/engine.h"
#include "engine/inspect/placement.h"
#include "row_limited_device.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;
using kz::testing::RowLimitedDevice;

namespace {

constexpr int kBooks = testing::kSteps + 1, kFrame = 1920;
constexpr double kTolerance = 1e-4;  // of samples of -1..1, and of logits

const testing::TinyModel &files() {
    static const testing::TinyModel tiny;
    return tiny;
}

RowLimitedDevice &device() {
    RowLimitedDevice &d = RowLimitedDevice::get();
    d.reset();
    return d;
}

// As it has been told to behave.
ggml_backend_dev_t handle() {
    return RowLimitedDevice::get().handle();
}

std::vector<int32_t> codes(int frames) {
    std::vector<int32_t> c(static_cast<size_t>(frames) * kBooks);
    uint32_t state = 5;
    for (int32_t &x : c) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<int32_t>((state >> 16) % testing::kCodebook);
    }
    return c;
}

Codec codec(ggml_backend_dev_t where, int max_rows = 0) {
    const GgufFile file(files().codec);
    return load_codec(file, kernels(), {true, where, max_rows});
}

std::vector<float> decode(Decoder &decoder, DecoderState &state, const std::vector<int32_t> &c,
                          const std::vector<int> &pieces) {
    std::vector<float> pcm(c.size() / kBooks * kFrame);
    int at = 0;
    for (const int p : pieces) {
        CHECK(decoder.decode(state, c.data() + static_cast<ptrdiff_t>(at) * kBooks, p,
                             pcm.data() + static_cast<ptrdiff_t>(at) * kFrame, nullptr));
        at += p;
    }
    CHECK_EQ(static_cast<size_t>(at) * kBooks, c.size());
    return pcm;
}

std::vector<float> decode(const Codec &codec, const std::vector<int32_t> &c,
                          const std::vector<int> &pieces) {
    const auto decoder = codec.make_decoder(nullptr, 1);
    const auto state = codec.make_state();
    return decode(*decoder, *state, c, pieces);
}

double difference(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() ? max_difference(a.data(), b.data(), a.size()) : INFINITY;
}

int count(const Placement &p, const char *where, const char *op) {
    const auto found = p.nodes.find({where, op});
    return found == p.nodes.end() ? 0 : found->second;
}

int count(const Placement &p, const char *op) {
    return count(p, RowLimitedDevice::kName, op) + count(p, "CPU", op);
}

}  // namespace

TEST(devices_are_found_by_name) {
    device();
    CHECK(find_device(nullptr, "x") == nullptr);
    CHECK(find_device("", "x") == nullptr);
    CHECK(find_device("CPU", "x") == nullptr);
    CHECK(find_device("cpu-graph", "x") == cpu_device());
    CHECK(find_device("rOwS0", "x") == device().handle());
    CHECK(find_device("auto", "x") == other_devices()[0]);
    CHECK_ERROR(find_device("Rows1", "talker_device"), KZ_ERR_ARGUMENT,
                "talker_device is 'Rows1', expected one of cpu, cpu-graph, auto, ");
    CHECK_ERROR(find_device("Rows1", "x"), KZ_ERR_ARGUMENT, "Rows0");
    CHECK(devices_json().find("\"a test's \\\"device\\\"\"") != std::string::npos);
}

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
    for (size_t i = 7 * kBooks; i < changed.size(); i++)
        changed[i] = (changed[i] + 1) % testing::kCodebook;
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
    const testing::TempFolder folder;
    const std::string path = folder.file("codec.gguf");
    testing::GgufWriter w;
    w.still_blocks = 12;
    testing::write_codec(w, path);
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
            CodecGraphDecoder decoder(std::get<CodecGraphWeights>(whole.form), 1);
            const Placement p = decoder.placement(8);
            CHECK(count(p, "CPU", "MUL_MAT") >= 20);
            CHECK(count(p, RowLimitedDevice::kName, "MUL_MAT") >= 20);
            CHECK(p.splits > 4 && p.copies > 4 && p.copied_bytes > 100'000);
            CHECK(std::get<CodecGraphWeights>(whole.form).tensors->host_bytes() > 0);
            CHECK(difference(decode(whole, c, {1, 8}), expected) < kTolerance);
        }
        const Codec split = codec(handle(), rows);
        const auto &weights = std::get<CodecGraphWeights>(split.form);
        CHECK_EQ(weights.tensors->host_bytes(), int64_t{0});
        CodecGraphDecoder decoder(weights, 1);
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
        CodecGraphDecoder decoder(std::get<CodecGraphWeights>(graph.form), 1);
        const Placement p = decoder.placement(2);
        CHECK(count(p, "CPU", ggml_op_name(op)) > 0);
        CHECK_EQ(count(p, RowLimitedDevice::kName, ggml_op_name(op)), 0);
        CHECK(count(p, RowLimitedDevice::kName, "MUL_MAT") > 100);
    }
}

TEST(a_device_is_started_by_one_thread) {
    RowLimitedDevice &d = device();
    d.started = false;
    std::thread other([&] { start_device(d.handle()); });
    start_device(d.handle());
    other.join();
    CHECK_EQ(d.starts.load(), 1);
    start_device(nullptr);
}

TEST(tensors_come_in_buffers_that_a_device_gives) {
    RowLimitedDevice &d = device();
    constexpr int kTensors = 5, kFloats = 1000;  // two fit, but for what aligns them
    d.largest_buffer = 2 * 4032 + 63;
    PlacedTensors placed(kTensors);
    std::vector<ggml_tensor *> tensors;
    for (int i = 0; i < kTensors; i++) {
        tensors.push_back(
            placed.add(std::to_string(i), GGML_TYPE_F32, {kFloats}, [i](ggml_tensor *t) {
                const std::vector<float> values(kFloats, float(i));
                upload(t, values.data());
            }));
    }
    placed.place(d.handle(), {}, true);
    CHECK_EQ(d.allocations.load(), kTensors);
    for (int i = 0; i < kTensors; i++) {
        std::vector<float> values(kFloats);
        download(tensors[static_cast<size_t>(i)], values.data());
        CHECK(values == std::vector<float>(kFloats, float(i)));
    }
    d.largest_buffer = 4000;
    PlacedTensors more(1);
    more.add("too large", GGML_TYPE_F32, {kFloats});
    CHECK_ERROR(more.place(d.handle(), {}, true), KZ_ERR_MEMORY, "device Rows0 has no");
}

TEST(a_device_that_refuses_to_write_where_it_must_is_an_error) {
    RowLimitedDevice &d = device();
    PlacedTensors placed(1);
    ggml_tensor *t = placed.add("a state", GGML_TYPE_F32, {8});
    placed.place(d.handle(), {}, false);
    d.refused_op = GGML_OP_CPY;
    const DeviceBackends backends(d.handle(), 1);
    PlacedGraph graph(4);
    graph.expand(ggml_cpy(graph.ctx(), graph.input(GGML_TYPE_F32, 8), t));
    CHECK_ERROR(graph.allocate(backends), KZ_ERR_COMPUTE,
                "device Rows0 refuses CPY into its own tensor a state");
}

namespace {

FloatBuffer embeds(int t) {
    FloatBuffer e(static_cast<size_t>(t) * 32);
    uint32_t seed = 41;
    for (float &x : e) x = testing::noise(seed);
    return e;
}

std::unique_ptr<const Model> load(ggml_backend_dev_t where, int max_rows = 0) {
    return load_model(
        files().talker, files().codec,
        {.f32 = true, .talker = where, .cp = where, .decoder = where, .max_rows = max_rows});
}

const Model &own_kernels() {
    static const auto model = load_model(files().talker, files().codec, {.f32 = true});
    return *model;
}

constexpr size_t kOut = 32 + testing::kCodecVocab;  // hidden and logits

std::vector<float> run(Talker &talker, KvCache &kv, const std::vector<int> &pieces) {
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

std::vector<float> run(const Model &model, const std::vector<int> &pieces) {
    Team alone;
    Talker talker(model.talker, alone, 1);
    TalkerState state(model.talker);
    return run(talker, state.kv, pieces);
}

}  // namespace

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
    const auto model = load(device().handle());
    Team alone;
    Talker talker(model->talker, alone, 1);
    const int lengths[] = {1, 9, 40};
    const FloatBuffer e = embeds(60);
    for (int round = 0; round < 2; round++) {  // the second one in slots that have been used
        std::vector<TalkerState> states(3, TalkerState(model->talker));
        std::vector<std::vector<float>> out(3, std::vector<float>(kOut));
        std::vector<LmSequence> prompts, steps;
        for (size_t i = 0; i < 3; i++)
            prompts.push_back({&states[i].kv, e.data(), lengths[i], nullptr, nullptr});
        CHECK(talker.forward(prompts));
        for (size_t i = 0; i < 3; i++)
            steps.push_back(
                {&states[i].kv, e.data() + lengths[i] * 32, 1, out[i].data(), out[i].data() + 32});
        CHECK(talker.forward(steps));
        for (size_t i = 0; i < 3; i++) CHECK(out[i] == run(*model, {lengths[i], 1}));
    }
}

TEST(a_code_predictor_on_a_device_equals_the_kernels) {
    const auto there = load(device().handle());
    std::vector<float> logits[3];
    std::vector<int32_t> chosen[3];
    const Model *models[] = {&own_kernels(), there.get(), there.get()};
    const FloatBuffer e = embeds(2);
    for (size_t i = 0; i < 3; i++) {
        Team alone;
        CodePredictor cp(models[i]->cp, alone, 1);
        chosen[i].resize(testing::kSteps);
        const auto choose = [&](int, const float *l) {
            logits[i].insert(logits[i].end(), l, l + testing::kCodebook);
            return static_cast<int>(std::max_element(l, l + testing::kCodebook) - l);
        };
        CpFrame frame{e.data(), e.data() + 32, choose, chosen[i].data()};
        CHECK(cp.run({&frame, 1}, i == 2));
    }
    for (const size_t i : {1, 2}) {
        CHECK(chosen[i] == chosen[0]);
        CHECK(difference(logits[i], logits[0]) < kTolerance);
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
    const auto decoder = model->codec.make_decoder(nullptr, 1);
    const auto decoder_state = model->codec.make_state();
    decoder->set_stop(&stop);
    std::vector<float> pcm(kFrame);
    CHECK(!decoder->decode(*decoder_state, codes(1).data(), 1, pcm.data(), nullptr));
}

TEST(placement_names_every_part) {
    device().max_rows = 1024;
    const auto all = placement_json(*load(handle(), 1024), 1);
    for (const char *text :
         {"\"max_rows\": 1024", "\"part\": \"talker\", \"device\": \"Rows0\"",
          "\"part\": \"code predictor\"", "\"part\": \"decoder\"", "\"graph\": \"8 frames\"",
          "\"splits\": 1", "\"op\": \"MUL_MAT\"", "\"op\": \"SET_ROWS\""})
        CHECK(all.find(text) != std::string::npos);
    CHECK(all.find("\"CPU\"") == std::string::npos);
    CHECK(placement_json(*load(cpu_device()), 1).find("\"device\": \"cpu-graph\"") !=
          std::string::npos);
    const auto none = placement_json(own_kernels(), 1);
    CHECK(none.find("\"device\": \"cpu\"") != std::string::npos);
    CHECK(none.find("MUL_MAT") == std::string::npos);
}
