// Whole streams with parts on a device, through the C interface: the same speech, cancellation,
// neighbours, and a device that runs out of memory or fails.
#include <cstring>
#include <string>
#include <thread>

#include "engine/generation.h"
#include "kazeia.h"
#include "row_limited_device.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;
using kz::testing::RowLimitedDevice;

namespace {

constexpr const char *kDevice = RowLimitedDevice::kName;

RowLimitedDevice &device() {
    RowLimitedDevice &d = RowLimitedDevice::get();
    d.reset();
    return d;
}

struct Where {
    const char *talker, *cp, *decoder;
};

kz_load_params load_params(const Where &where, int max_rows = 0) {
    kz_load_params p{};
    p.struct_size = sizeof(p);
    p.precision = KZ_PRECISION_F32;
    p.n_threads = 2;
    p.talker_device = where.talker;
    p.cp_device = where.cp;
    p.decoder_device = where.decoder;
    p.max_rows = max_rows;
    return p;
}

struct Loaded {
    explicit Loaded(const Where &where, int max_rows = 0) {
        const kz_load_params p = load_params(where, max_rows);
        CHECK_EQ(kz_model_load(files.talker.c_str(), files.codec.c_str(), &p, &model), KZ_OK);
    }
    ~Loaded() { kz_model_free(model); }
    Loaded(const Loaded &) = delete;
    testing::TinyModel files;
    kz_model *model = nullptr;
};

const int32_t kText[] = {1, 2, 3, -1, 5};
const int32_t kCodec[] = {-1, 4, 5, 6, 18};

kz_stream_params params(int frames, int chunk = -1, uint64_t seed = 3) {
    kz_stream_params p{};
    p.struct_size = sizeof(p);
    CHECK_EQ(kz_stream_params_default(&p), KZ_OK);
    p.prompt = {kText, kCodec, 5, nullptr, 0, 11, 0, 1, 3};
    p.max_frames = frames;
    p.chunk = chunk;
    p.seed = seed;
    p.ignore_eos = 1;
    return p;
}

kz_stream_params greedy(int frames, int chunk) {
    kz_stream_params p = params(frames, chunk);
    p.talker.temperature = p.cp.temperature = 0;
    return p;
}

struct Spoken {
    std::vector<float> pcm;
    std::vector<int32_t> codes;
    kz_status last = KZ_OK;
    int ended = 0;
    std::string error;
};

Spoken read_all(kz_stream *stream) {
    Spoken s;
    kz_chunk chunk;
    while ((s.last = kz_stream_read(stream, -1, &chunk)) == KZ_OK)
        s.pcm.insert(s.pcm.end(), chunk.pcm, chunk.pcm + chunk.n_samples);
    if (s.last != KZ_END) s.error = kz_last_error();
    kz_result result{};
    result.struct_size = sizeof(result);
    CHECK_EQ(kz_stream_result(stream, &result), KZ_OK);
    s.ended = result.ended;
    s.codes.assign(result.codes, result.codes + result.n_frames * 16);
    return s;
}

Spoken speak(kz_model *model, const kz_stream_params &p) {
    kz_stream *stream = nullptr;
    CHECK_EQ(kz_stream_open(model, &p, &stream), KZ_OK);
    Spoken s = read_all(stream);
    kz_stream_free(stream);
    return s;
}

}  // namespace

TEST(parts_on_a_device_speak_as_the_kernels_do) {
    device().max_rows = 1024;
    const Spoken expected = speak(Loaded({nullptr, nullptr, nullptr}).model, greedy(23, 0));
    for (const Where &where : {Where{kDevice, nullptr, nullptr}, Where{nullptr, kDevice, "cpu"},
                               Where{nullptr, nullptr, kDevice}, Where{kDevice, kDevice, kDevice},
                               Where{"auto", "rows0", "cpu-graph"}}) {
        const Loaded l(where, 1024);
        for (const int chunk : {0, -1, 1, 5}) {
            const Spoken s = speak(l.model, greedy(23, chunk));
            CHECK(s.codes == expected.codes);
            CHECK(s.pcm.size() == expected.pcm.size());
            CHECK(max_difference(s.pcm.data(), expected.pcm.data(), s.pcm.size()) < 1e-4);
        }
    }
}

TEST(streams_on_a_device_side_by_side) {
    device();
    const Loaded l({kDevice, kDevice, kDevice});
    constexpr size_t kStreams = 6;
    const auto request = [](size_t i) {
        return params(4 + static_cast<int>(i), static_cast<int>(i % 3) + 1, i);
    };
    std::vector<Spoken> alone(kStreams), together(kStreams);
    for (size_t i = 0; i < kStreams; i++) alone[i] = speak(l.model, request(i));
    std::vector<std::thread> readers;
    for (size_t i = 0; i < kStreams; i++)
        readers.emplace_back([&, i] { together[i] = speak(l.model, request(i)); });
    kz_stream *leaver = nullptr;
    kz_chunk chunk;
    const kz_stream_params p = params(4000, 1);
    CHECK_EQ(kz_stream_open(l.model, &p, &leaver), KZ_OK);
    CHECK_EQ(kz_stream_read(leaver, -1, &chunk), KZ_OK);
    kz_stream_cancel(leaver);
    CHECK_EQ(read_all(leaver).ended, static_cast<int>(KZ_ENDED_CANCELLED));
    kz_stream_free(leaver);
    for (auto &r : readers) r.join();
    for (size_t i = 0; i < kStreams; i++) {
        CHECK(together[i].codes == alone[i].codes);
        CHECK(together[i].pcm == alone[i].pcm);  // the same chunks
    }
}

TEST(a_device_that_fails_ends_the_stream_and_nothing_else) {
    const Loaded l({kDevice, kDevice, kDevice});
    device();
    const Spoken expected = speak(l.model, params(6, 1));
    CHECK_EQ(expected.last, KZ_END);
    for (const int graphs : {0, 1, 20, 60}) {
        device().graphs_until_failure = graphs;
        const Spoken s = speak(l.model, params(6, 1));
        CHECK_EQ(s.last, KZ_ERR_COMPUTE);
        CHECK_EQ(s.ended, static_cast<int>(KZ_ENDED_ERROR));
        CHECK(s.error.find("device Rows0") != std::string::npos);
        device();
        CHECK(speak(l.model, params(6, 1)).pcm == expected.pcm);
    }
}

TEST(what_a_driver_throws_names_the_device) {
    using Call = RowLimitedDevice::Call;
    for (const Call call :
         {Call::kAllocate, Call::kUpload, Call::kDownload, Call::kClear, Call::kCompute}) {
        for (const Where &where :
             {Where{kDevice, nullptr, nullptr}, Where{nullptr, kDevice, nullptr},
              Where{nullptr, nullptr, kDevice}}) {
            device();
            const Loaded l(where);
            RowLimitedDevice::get().throwing = call;
            const Spoken s = speak(l.model, params(3, 1));
            CHECK_EQ(s.last, KZ_ERR_COMPUTE);
            CHECK(s.error.find("device Rows0") != std::string::npos);
            CHECK(s.error.find("the driver is lost") != std::string::npos);
            device();
            CHECK_EQ(speak(l.model, params(3, 1)).last, KZ_END);
        }
    }
    for (const Call call : {Call::kStart, Call::kAllocate, Call::kUpload}) {
        const testing::TinyModel files;
        device().throwing = call;
        const kz_load_params p = load_params({nullptr, nullptr, kDevice});
        kz_model *model = nullptr;
        CHECK_EQ(kz_model_load(files.talker.c_str(), files.codec.c_str(), &p, &model),
                 KZ_ERR_COMPUTE);
        CHECK(std::string(kz_last_error()).find("device Rows0: ") != std::string::npos);
    }
    device();
}

TEST(what_is_not_finite_ends_one_stream_only) {
    for (const Where &where : {Where{kDevice, nullptr, nullptr}, Where{nullptr, kDevice, nullptr},
                               Where{nullptr, nullptr, kDevice}}) {
        device();
        const Loaded l(where);
        const Spoken expected = speak(l.model, params(4, 1));
        CHECK_EQ(expected.last, KZ_END);
        RowLimitedDevice::get().poisoned_graphs = 1;
        const Spoken s = speak(l.model, params(4, 1));
        CHECK_EQ(s.last, KZ_ERR_COMPUTE);
        CHECK(s.error.find("Rows0") != std::string::npos);
        CHECK(s.error.find("not finite") != std::string::npos);
        CHECK_EQ(RowLimitedDevice::get().poisoned_graphs.load(), 0);
        CHECK(speak(l.model, params(4, 1)).pcm == expected.pcm);
    }
}

TEST(a_stream_without_memory_ends_alone) {
    const testing::TinyModel files;
    ggml_backend_dev_t where = device().handle();
    const auto model = load_model(files.talker, files.codec,
                                  {.f32 = true, .talker = where, .cp = where, .decoder = where});
    const Request request(*model, params(9));
    Generation one(*model, request), two(*model, request);
    Team alone;
    Generator generator(*model, alone, 1);
    const auto turn = [](Generation &g) {
        Turn t{};
        t.generation = &g;
        t.next_text = 11;
        return t;
    };
    std::vector<Turn> turns{turn(one)};
    kz::advance(generator, turns);
    CHECK(turns[0].outcome == Turn::Outcome::kFrame);
    kz::advance(generator, turns = {turn(one)});  // has all it needs
    const size_t cache = 2 * 2 * 128 * 16 * sizeof(float) + 64;
    RowLimitedDevice::get().memory_limit = RowLimitedDevice::get().allocated + cache;
    kz::advance(generator, turns = {turn(two), turn(one)});
    CHECK_EQ(turns[0].status, KZ_ERR_MEMORY);
    CHECK(turns[0].error.find("device Rows0 has no memory for a graph") != std::string::npos);
    CHECK_EQ(turns[1].status, KZ_OK);
    CHECK(turns[1].outcome == Turn::Outcome::kFrame);
    CHECK_EQ(one.frames(), 3);
    device();
}

TEST(a_device_without_memory_is_named) {
    {
        const testing::TinyModel files;
        device().memory_limit = RowLimitedDevice::get().allocated + 1000;
        const kz_load_params p = load_params({kDevice, nullptr, nullptr});
        kz_model *model = nullptr;
        CHECK_EQ(kz_model_load(files.talker.c_str(), files.codec.c_str(), &p, &model),
                 KZ_ERR_MEMORY);
        CHECK(std::string(kz_last_error()).find("device Rows0 has no") != std::string::npos);
    }
    device();
    const Loaded l({kDevice, kDevice, kDevice});
    RowLimitedDevice::get().memory_limit = RowLimitedDevice::get().allocated + 1000;
    const Spoken s = speak(l.model, params(3));
    CHECK_EQ(s.last, KZ_ERR_MEMORY);
    CHECK(s.error.find("device Rows0") != std::string::npos);
    device();
    CHECK_EQ(speak(l.model, params(3)).last, KZ_END);
}

TEST(bad_devices_and_row_counts_are_refused) {
    const testing::TinyModel files;
    kz_model *model = nullptr;
    const auto refused = [&](const kz_load_params &p, const char *text) {
        CHECK_EQ(kz_model_load(files.talker.c_str(), files.codec.c_str(), &p, &model),
                 KZ_ERR_ARGUMENT);
        CHECK(std::string(kz_last_error()).find(text) != std::string::npos);
    };
    device();
    refused(load_params({nullptr, "Rows7", nullptr}), "cp_device is 'Rows7'");
    refused(load_params({nullptr, nullptr, "Rows7"}), "Rows0");
    refused(load_params({nullptr, nullptr, nullptr}, 63), "max_rows is 63");
    refused(load_params({nullptr, nullptr, nullptr}, -1), "max_rows is -1");
}

TEST(placement_and_devices_are_written_into_the_callers_memory) {
    device();
    const Loaded l({kDevice, nullptr, nullptr});
    size_t needed = 0;
    CHECK_EQ(kz_model_placement(l.model, nullptr, 0, &needed), KZ_OK);
    std::string text(needed, 'x');
    CHECK_EQ(kz_model_placement(l.model, text.data(), needed - 1, &needed), KZ_ERR_ARGUMENT);
    CHECK_EQ(kz_model_placement(l.model, text.data(), text.size(), &needed), KZ_OK);
    CHECK_EQ(std::strlen(text.c_str()) + 1, needed);
    CHECK(text.find("Rows0") != std::string::npos);
    CHECK_EQ(kz_model_placement(l.model, nullptr, 0, nullptr), KZ_ERR_ARGUMENT);
    CHECK_EQ(kz_devices(nullptr, 0, &needed), KZ_OK);
    text.assign(needed, 'x');
    CHECK_EQ(kz_devices(text.data(), text.size(), &needed), KZ_OK);
    CHECK(text.find("\"name\": \"Rows0\"") != std::string::npos);
    CHECK(text.find("\"auto\": true") != std::string::npos);  // it is the only GPU
}
