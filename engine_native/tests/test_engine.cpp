#include "engine/engine.h"

#include <cstring>
#include <set>

#include "kazeia.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::TinyModel;

namespace {

struct Loaded {
    explicit Loaded(int threads = 1, float gain = 1) : files(gain) {
        kz_load_params params{};
        params.struct_size = sizeof(params);
        params.precision = KZ_PRECISION_F32;
        params.n_threads = threads;
        CHECK_EQ(kz_model_load(files.talker.c_str(), files.codec.c_str(), &params, &model), KZ_OK);
    }
    ~Loaded() { kz_model_free(model); }
    Loaded(const Loaded &) = delete;
    TinyModel files;
    kz_model *model = nullptr;
};

const int32_t kText[] = {1, 2, 3, -1, 5};
const int32_t kCodec[] = {-1, 4, 5, 6, 18};
const int32_t kTrailing[] = {7, 8, 9, 10};

kz_stream_params params(int frames, int chunk = -1) {
    kz_stream_params p{};
    p.struct_size = sizeof(p);
    CHECK_EQ(kz_stream_params_default(&p), KZ_OK);
    p.prompt = {kText, kCodec, 5, nullptr, 0, 11, 0, 1, 0};
    p.max_frames = frames;
    p.chunk = chunk;
    p.seed = 3;
    p.ignore_eos = 1;
    return p;
}

struct Spoken {
    std::vector<float> pcm;
    std::vector<int32_t> codes;
    std::vector<int> chunks;  // frames of each
    kz_status last = KZ_OK;
    kz_result result{};
};

Spoken read_all(kz_stream *stream) {
    Spoken s;
    kz_chunk chunk;
    while ((s.last = kz_stream_read(stream, -1, &chunk)) == KZ_OK) {
        s.pcm.insert(s.pcm.end(), chunk.pcm, chunk.pcm + chunk.n_samples);
        s.chunks.push_back(chunk.n_frames);
    }
    s.result.struct_size = sizeof(kz_result);
    CHECK_EQ(kz_stream_result(stream, &s.result), KZ_OK);
    s.codes.assign(s.result.codes, s.result.codes + s.result.n_frames * 16);
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

TEST(chunking_changes_neither_codes_nor_samples) {
    const Loaded l;
    const Spoken whole = speak(l.model, params(23, 0));
    CHECK_EQ(whole.chunks.size(), size_t{1});
    CHECK_EQ(whole.pcm.size(), size_t{23} * 1920);
    CHECK_EQ(static_cast<int>(whole.result.ended), static_cast<int>(KZ_ENDED_MAX_FRAMES));
    CHECK(std::set<int32_t>(whole.codes.begin(), whole.codes.end()).size() > 3);
    for (const int chunk : {-1, 1, 3, 23, 100}) {
        const Spoken s = speak(l.model, params(23, chunk));
        CHECK(s.codes == whole.codes);
        CHECK(s.pcm.size() == whole.pcm.size() &&
              std::memcmp(s.pcm.data(), whole.pcm.data(), sizeof(float) * s.pcm.size()) == 0);
        if (chunk == 3) CHECK(s.chunks == std::vector<int>({3, 3, 3, 3, 3, 3, 3, 2}));
        if (chunk == -1) CHECK_EQ(s.chunks[0], 1);
        CHECK_EQ(static_cast<size_t>(s.result.n_chunks), s.chunks.size());
        CHECK(s.result.ttfb_s > 0 && s.result.work_s >= s.result.ttfb_s);
    }
}

TEST(seeds_settings_and_oracle) {
    const Loaded l;
    const Spoken a = speak(l.model, params(12));
    CHECK(speak(l.model, params(12)).codes == a.codes);
    kz_stream_params p = params(12);
    p.cp_recompute = 1;
    kz_stream *beside = nullptr;
    const kz_stream_params cached = params(12);
    CHECK_EQ(kz_stream_open(l.model, &cached, &beside), KZ_OK);
    CHECK(speak(l.model, p).codes == a.codes);
    CHECK(read_all(beside).codes == a.codes);
    kz_stream_free(beside);
    p = params(12);
    p.seed = 4;
    CHECK(speak(l.model, p).codes != a.codes);
}

TEST(guard_bounds_the_length_by_the_text) {
    const Loaded l;
    kz_stream_params p = params(200);
    p.ignore_eos = 0;
    p.talker.temperature = 0;  // greedy random weights never say end-of-speech by themselves
    const Spoken free_run = speak(l.model, p);
    CHECK_EQ(static_cast<int>(free_run.result.ended), static_cast<int>(KZ_ENDED_MAX_FRAMES));

    p.guard = {7.0f, 10, 0.0f, 0, 0};
    p.prompt.trailing_ids = kTrailing;
    p.prompt.n_trailing = 4;
    const Spoken bounded = speak(l.model, p);
    CHECK_EQ(static_cast<int>(bounded.result.ended), static_cast<int>(KZ_ENDED_RUNAWAY));
    CHECK_EQ(bounded.result.n_frames, 35);  // 7 for each of 1 + 4 tokens

    p.guard.min_frames = 50;
    CHECK_EQ(speak(l.model, p).result.n_frames, 50);

    // A boost that grows by 10 a frame ends it soon after half the limit, as if by itself.
    p.guard.eos_boost = 10.0f;
    const Spoken boosted = speak(l.model, p);
    CHECK_EQ(static_cast<int>(boosted.result.ended), static_cast<int>(KZ_ENDED_EOS));
    CHECK(boosted.result.n_frames > 25 && boosted.result.n_frames < 35);
    // What came before is what would have come without a guard.
    p.guard = {};
    const Spoken unguarded = speak(l.model, p);
    CHECK(std::equal(boosted.codes.begin(), boosted.codes.end(), unguarded.codes.begin()));
}

TEST(guard_ends_silence_at_the_same_frame_whatever_the_chunks) {
    const Loaded silent(1, 0), loud;
    for (const int chunk : {-1, 0, 1, 7}) {
        kz_stream_params p = params(30, chunk);
        CHECK_EQ(speak(silent.model, p).result.n_frames, 30);
        p.guard.silence_frames = 15;
        kz_stream *neighbour = nullptr;
        const kz_stream_params other = params(20);
        CHECK_EQ(kz_stream_open(silent.model, &other, &neighbour), KZ_OK);
        for (const int skipped : {0, 3}) {
            p.skip_frames = skipped;
            const Spoken s = speak(silent.model, p);
            CHECK_EQ(static_cast<int>(s.result.ended), static_cast<int>(KZ_ENDED_SILENCE));
            CHECK_EQ(s.result.n_frames, 15 + skipped);
            CHECK_EQ(s.codes.size(), static_cast<size_t>(s.result.n_frames) * 16);
            CHECK_EQ(s.pcm.size(), static_cast<size_t>(s.result.n_frames - skipped) * 1920);
        }
        CHECK_EQ(read_all(neighbour).result.n_frames, 20);
        kz_stream_free(neighbour);
        p.skip_frames = 0;
        CHECK_EQ(speak(silent.model, p).result.n_frames, 15);
        CHECK_EQ(speak(loud.model, p).result.n_frames, 30);
    }
}

TEST(guard_ends_repetition) {
    const Loaded l;
    kz_stream_params p = params(100, 0);
    p.talker.temperature = p.cp.temperature = 0;
    p.talker.repetition_penalty = 1;
    const Spoken free_run = speak(l.model, p);
    int longest = 0, at = 0;  // the longest repetition of codebook 0, and where it is complete
    for (int period = 1; period <= 8; period++) {
        int run = 0;
        for (int i = period; i < 100; i++) {
            const auto first = [&](int k) { return free_run.codes[static_cast<size_t>(k) * 16]; };
            run = first(i) == first(i - period) ? run + 1 : 0;
            if (run > longest || (run == longest && i < at)) {
                longest = run;
                at = i;
            }
        }
    }
    CHECK(longest > 0);
    p.guard.repeat_frames = longest;
    const Spoken cut = speak(l.model, p);
    CHECK_EQ(static_cast<int>(cut.result.ended), static_cast<int>(KZ_ENDED_REPETITION));
    CHECK_EQ(cut.result.n_frames, at + 1);
    p.guard.repeat_frames = longest + 1;
    CHECK_EQ(speak(l.model, p).result.n_frames, 100);

    p.guard.repeat_frames = 0;
    p.guard.silence_frames = -1;
    kz_stream *stream = nullptr;
    CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_ERR_ARGUMENT);
    p.guard.silence_frames = 0;
    p.guard.eos_boost = -1.0f;
    CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_ERR_ARGUMENT);
}

// More streams than a pass takes, each of another length, chunk, prefix and seed; readers come in
// waves, and some leave early.
TEST(streams_side_by_side_do_not_change_each_other) {
    constexpr size_t kStreams = 20;
    const auto request = [](size_t i) {
        const int n = static_cast<int>(i);
        kz_stream_params p = params(3 + n % 7, n % 4 - 1);
        p.prompt.n_prefix = n % 3;
        p.skip_frames = n % 5 == 0 ? 1 : 0;
        p.seed = i;
        return p;
    };
    std::vector<Spoken> alone;
    {
        const Loaded l(1);
        for (size_t i = 0; i < kStreams; i++) alone.push_back(speak(l.model, request(i)));
    }
    for (const int threads : {1, 2, 4}) {
        const Loaded l(threads);
        std::vector<Spoken> together(kStreams);
        std::vector<std::thread> readers;
        for (size_t i = 0; i < kStreams; i++) {
            readers.emplace_back([&, i] {
                std::this_thread::sleep_for(std::chrono::milliseconds(i / 8 * 5));
                together[i] = speak(l.model, request(i));
            });
        }
        kz_stream *leaver = nullptr;
        kz_chunk chunk;
        kz_stream_params p = params(4000, 1);
        CHECK_EQ(kz_stream_open(l.model, &p, &leaver), KZ_OK);
        CHECK_EQ(kz_stream_read(leaver, -1, &chunk), KZ_OK);
        kz_stream_free(leaver);
        for (auto &r : readers) r.join();
        for (size_t i = 0; i < kStreams; i++) {
            CHECK(together[i].codes == alone[i].codes);
            CHECK(together[i].pcm == alone[i].pcm);
        }
    }
}

// Both threads decode what the only listener waits for, whatever the first chunk is made of.
TEST(the_first_chunk_comes_whatever_it_takes) {
    for (const int threads : {1, 2, 4}) {
        const Loaded l(threads);
        for (const int chunk : {-1, 0, 1, 3, 100}) {
            for (const int skip : {0, 1, 4}) {
                kz_stream_params p = params(6, chunk);
                p.skip_frames = skip;
                const Spoken s = speak(l.model, p);
                CHECK_EQ(s.result.n_frames, 6);
                CHECK_EQ(static_cast<int>(s.pcm.size()), (6 - skip) * 1920);
            }
        }
    }
}

TEST(cancel_ends_the_reader_and_frees_the_turn) {
    const Loaded l(2);
    kz_stream *stream = nullptr;
    kz_stream_params p = params(4000, 1);
    CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_OK);
    kz_chunk chunk;
    CHECK_EQ(kz_stream_read(stream, -1, &chunk), KZ_OK);
    std::thread canceller([&] { kz_stream_cancel(stream); });
    const Spoken rest = read_all(stream);
    canceller.join();
    CHECK_EQ(rest.last, KZ_END);
    CHECK_EQ(rest.result.ended, static_cast<int>(KZ_ENDED_CANCELLED));
    CHECK_EQ(kz_stream_read(stream, -1, &chunk), KZ_END);
    kz_stream_free(stream);
    CHECK_EQ(speak(l.model, params(3)).result.n_frames, 3);
}

TEST(an_unread_stream_pauses_alone) {
    const Loaded l;
    kz_stream *slow = nullptr;
    kz_stream_params p = params(4000, 1);
    CHECK_EQ(kz_stream_open(l.model, &p, &slow), KZ_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(speak(l.model, params(700)).result.n_frames, 700);
    kz_stream_cancel(slow);
    kz_result result{};
    result.struct_size = sizeof(result);
    CHECK_EQ(kz_stream_result(slow, &result), KZ_OK);
    // All streams advanced in turn: without bounds it would have thousands of frames.
    CHECK_NEAR(result.n_frames, 256 + 64, 2);
    kz_stream_free(slow);
}

TEST(a_chunk_larger_than_the_queue_is_delivered) {
    const Loaded l;
    const Spoken s = speak(l.model, params(230, 100));
    CHECK(s.chunks == std::vector<int>({100, 100, 30}));
}

// Told by order: within the time in which one utterance was decoded, others began and were heard.
TEST(a_long_decode_lets_others_speak_in_between) {
    const TinyModel files;
    Engine engine(load_model(files.talker, files.codec, {.f32 = true}), 2);
    const auto whole = engine.open(params(1000, 0));
    std::vector<double> heard;  // when the others' first chunks were ready
    PcmChunk all, first;
    kz_result result{};
    while (engine.read(*whole, 0, all) == KZ_TIMEOUT) {
        const auto other = engine.open(params(2));
        while (engine.read(*other, -1, first) == KZ_OK) {
        }
        engine.result(*other, result);
        heard.push_back(other->progress().first_chunk);
        engine.release(other);
    }
    CHECK_EQ(all.n_frames, 1000);
    CHECK_EQ(engine.read(*whole, -1, all), KZ_END);
    engine.result(*whole, result);
    const double end = whole->progress().first_chunk;
    const double begin = end - result.stage_s[KZ_STAGE_DECODER];
    CHECK(std::count_if(heard.begin(), heard.end(),
                        [&](double t) { return begin < t && t < end; }) > 0);
}

TEST(silence_is_heard_before_an_utterance_in_one_chunk_is_complete) {
    const TinyModel files(0);
    Engine engine(load_model(files.talker, files.codec, {.f32 = true}), 2);
    kz_stream_params p = params(4000, 0);
    p.guard.silence_frames = 15;
    const auto stream = engine.open(p);
    PcmChunk chunk;
    CHECK_EQ(engine.read(*stream, -1, chunk), KZ_OK);
    CHECK_EQ(chunk.n_frames, 15);
    CHECK_EQ(engine.read(*stream, -1, chunk), KZ_END);
    kz_result result{};
    engine.result(*stream, result);
    CHECK_EQ(result.ended, static_cast<int>(KZ_ENDED_SILENCE));
    CHECK_EQ(result.n_frames, 15);
    CHECK(stream->generation.frames() < 4000);
}

TEST(closing_with_streams_open_ends_them) {
    for (const int threads : {1, 2, 4}) {
        kz_stream *streams[3] = {};
        kz_chunk chunk;
        {
            const Loaded l(threads);
            kz_stream_params p = params(4000, 1);
            for (auto &stream : streams) CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_OK);
            CHECK_EQ(kz_stream_read(streams[0], -1, &chunk), KZ_OK);
        }
        for (kz_stream *stream : streams) {
            kz_status status;
            while ((status = kz_stream_read(stream, -1, &chunk)) == KZ_OK) {
            }
            CHECK_EQ(status, KZ_ERR_CLOSED);
            CHECK(std::string(kz_last_error()).find("closed") != std::string::npos);
            kz_stream_free(stream);
        }
    }
}

TEST(text_is_awaited_never_padded) {
    const Loaded l;
    kz_stream_params p = params(8, 1);
    p.prompt.trailing_ids = kTrailing;
    p.prompt.n_trailing = 4;
    const Spoken whole = speak(l.model, p);

    p.prompt.n_trailing = 0;
    p.prompt.text_open = 1;
    kz_stream *stream = nullptr;
    CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_OK);
    kz_chunk chunk;
    std::vector<float> pcm;
    CHECK_EQ(kz_stream_read(stream, -1, &chunk), KZ_OK);  // the first frame needs no text
    pcm.assign(chunk.pcm, chunk.pcm + chunk.n_samples);
    CHECK_EQ(kz_stream_read(stream, 50, &chunk), KZ_TIMEOUT);
    CHECK_EQ(kz_stream_push_text(stream, kTrailing, 2), KZ_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(kz_stream_read(stream, -1, &chunk), KZ_OK);
        pcm.insert(pcm.end(), chunk.pcm, chunk.pcm + chunk.n_samples);
    }
    CHECK_EQ(kz_stream_read(stream, 50, &chunk), KZ_TIMEOUT);
    CHECK_EQ(kz_stream_push_text(stream, kTrailing + 2, 1), KZ_OK);
    CHECK_EQ(kz_stream_finish_text(stream, kTrailing + 3, 1), KZ_OK);
    CHECK_EQ(kz_stream_push_text(stream, kTrailing, 1), KZ_ERR_ARGUMENT);
    const Spoken rest = read_all(stream);
    pcm.insert(pcm.end(), rest.pcm.begin(), rest.pcm.end());
    CHECK(rest.codes == whole.codes);
    CHECK(pcm == whole.pcm);
    CHECK(rest.result.wait_s > 0.05);
    kz_stream_free(stream);
}

TEST(end_of_speech_is_masked_while_text_remains) {
    const Loaded l;
    // A hot talker of 17 candidates draws end-of-speech soon; it must not before frame 5.
    for (uint64_t seed = 0; seed < 40; seed++) {
        kz_stream_params p = params(200, 0);
        p.prompt.trailing_ids = kTrailing;
        p.prompt.n_trailing = 4;
        p.ignore_eos = 0;
        p.talker = {50.0f, 0, 1.0f, 1.0f, 0};
        p.seed = seed;
        const Spoken s = speak(l.model, p);
        CHECK(s.result.n_frames >= 4);
        CHECK_EQ(s.result.ended, static_cast<int>(KZ_ENDED_EOS));
    }
}

TEST(parameters_of_a_newer_program_are_known_as_far_as_they_go) {
    const Loaded l;
    struct {
        kz_stream_params known;
        int64_t newer;
    } p{};
    p.newer = 1;
    p.known.struct_size = sizeof(p);
    CHECK_EQ(kz_stream_params_default(&p.known), KZ_OK);
    CHECK_EQ(p.known.struct_size, sizeof(p));
    CHECK_EQ(p.newer, int64_t{0});
    CHECK_EQ(p.known.max_frames, 2048);
    CHECK_EQ(p.known.talker.top_k, 50);
    p.known.prompt = params(4).prompt;
    p.known.max_frames = 4;
    p.known.ignore_eos = 1;
    CHECK_EQ(speak(l.model, p.known).result.n_frames, 4);
    p.newer = 1;
    kz_stream *stream = nullptr;
    CHECK_EQ(kz_stream_open(l.model, &p.known, &stream), KZ_ERR_ARGUMENT);
    CHECK(std::string(kz_last_error()).find("compiled for a newer one") != std::string::npos);
}

TEST(skipped_frames_are_not_heard) {
    const Loaded l;
    const Spoken all = speak(l.model, params(6, 1));
    kz_stream_params p = params(6, 1);
    p.skip_frames = 2;
    const Spoken s = speak(l.model, p);
    CHECK_EQ(s.pcm.size(), size_t{4} * 1920);
    CHECK(std::memcmp(s.pcm.data(), all.pcm.data() + 2 * 1920, sizeof(float) * s.pcm.size()) == 0);
}

TEST(bad_arguments_are_named_and_nothing_breaks) {
    const Loaded l;
    kz_stream *stream = nullptr;
    const auto refused = [&](const kz_stream_params &p, const char *text) {
        CHECK_EQ(kz_stream_open(l.model, &p, &stream), KZ_ERR_ARGUMENT);
        CHECK(std::string(kz_last_error()).find(text) != std::string::npos);
    };
    kz_stream_params p = params(4);
    p.talker.temperature = NAN;
    refused(p, "temperature");
    p = params(0);
    refused(p, "max_frames");
    p = params(5000);
    refused(p, "max_frames");
    p = params(4);
    p.prompt.n_positions = 0;
    refused(p, "n_positions");
    p = params(4);
    const int32_t wrong[] = {1, 2, 3, 4000, 5};
    p.prompt.text_ids = wrong;
    refused(p, "text id");
    p = params(4);
    p.cp.top_p = 2.0f;
    refused(p, "top_p");
    p = params(4);
    p.struct_size = 8;
    refused(p, "size 8, expected its sizeof");
    CHECK_EQ(kz_stream_params_default(&p), KZ_ERR_ARGUMENT);
    CHECK_EQ(kz_stream_params_default(nullptr), KZ_ERR_ARGUMENT);

    kz_decoder *decoder = nullptr;
    CHECK_EQ(kz_decoder_open(l.model, &decoder), KZ_OK);
    std::vector<int32_t> codes(16, 0);
    std::vector<float> pcm(1920);
    codes[5] = 16;
    CHECK_EQ(kz_decoder_feed(decoder, codes.data(), 1, pcm.data()), KZ_ERR_ARGUMENT);
    CHECK(std::string(kz_last_error()).find("codebook 5") != std::string::npos);
    codes[5] = 15;
    CHECK_EQ(kz_decoder_feed(decoder, codes.data(), 1, pcm.data()), KZ_OK);
    kz_decoder_free(decoder);
    CHECK_EQ(kz_model_load(nullptr, "x", nullptr, nullptr), KZ_ERR_ARGUMENT);
    CHECK_EQ(speak(l.model, params(2)).result.n_frames, 2);
}
