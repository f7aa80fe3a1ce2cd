// Who is next, on a clock of the tests' own.
#include "engine/schedule.h"

#include <algorithm>
#include <numeric>

#include "testing.h"

using namespace kz;

namespace {

constexpr double kFrame = 0.08;

Progress request(int chunk) {
    Progress p;
    p.chunk = chunk;
    p.frame_s = kFrame;
    return p;
}

// A stream that has had its first chunk at 10 s, and has so many frames in each place.
Progress running(int chunk, int generated, int taken, int last_turn) {
    Progress p = request(chunk);
    p.generated = generated;
    p.taken = p.delivered = taken;
    p.last_turn = last_turn;
    p.n_chunks = 1;
    p.first_chunk = 10;
    return p;
}

std::vector<const Progress *> all(const std::vector<Progress> &streams) {
    std::vector<const Progress *> pointers;
    for (const Progress &p : streams) pointers.push_back(&p);
    return pointers;
}

// A decoder that needs `cost` seconds a frame, before streams that come by a timetable.
struct Decoding {
    struct Source {
        double start, every;  // s: when the first frame is there, and each after it
        int frames;
    };
    struct Turn {
        size_t stream;
        int frames;
        double begin, end;
        bool chunk;  // it completed one
    };

    explicit Decoding(double frame_cost) : cost(frame_cost) {}

    void add(const Progress &p, Source source) {
        streams.push_back(p);
        streams.back().served = source.start;
        sources.push_back(source);
    }

    void generate() {
        for (size_t i = 0; i < streams.size(); i++) {
            const Source &s = sources[i];
            if (streams[i].all_generated || now < s.start) continue;
            const double come = s.every > 0 ? (now - s.start) / s.every + 1 + 1e-9 : s.frames;
            streams[i].generated = std::min(s.frames, static_cast<int>(come));
            streams[i].all_generated = streams[i].generated == s.frames;
        }
    }

    // Until no frame is left or `end`.
    void run(double end = kNever) {
        while (now < end) {
            generate();
            if (const auto next = next_to_decode(all(streams), rotation, now)) {
                rotation = *next + 1;
                Progress &p = streams[*next];
                Turn turn{*next, p.begin_turn(), now, 0, false};
                now += turn.frames * cost;
                generate();
                p.end_turn(now);
                turn.end = now;
                turn.chunk = chunk_collected(p);
                if (turn.chunk) {
                    chunks.push_back({*next, p.taken - p.delivered, turn.begin, now, true});
                    p.deliver(true, now);
                }
                p.finished = p.all_generated && p.taken == p.generated;
                p.unread = 0;
                turns.push_back(turn);
                continue;
            }
            double next = next_due(all(streams));
            for (size_t i = 0; i < streams.size(); i++) {
                if (streams[i].all_generated) continue;
                const double frame = sources[i].start + streams[i].generated * sources[i].every;
                next = std::min(next, std::max(frame, sources[i].start));
            }
            if (next == kNever) return;
            now = next;
        }
    }

    std::vector<int> sizes(const std::vector<Turn> &of, size_t stream) const {
        std::vector<int> found;
        for (const Turn &t : of)
            if (t.stream == stream) found.push_back(t.frames);
        return found;
    }

    // The longest silence of a listener who plays each chunk as it comes.
    double longest_silence(size_t stream) const {
        double worst = 0, dry = kNever;
        for (const Turn &c : chunks) {
            if (c.stream != stream) continue;
            worst = std::max(worst, c.end - dry);
            dry = (dry == kNever ? c.end : std::max(dry, c.end)) + c.frames * kFrame;
        }
        return worst;
    }

    const double cost;
    double now = 0;
    size_t rotation = 0;
    std::vector<Progress> streams;
    std::vector<Source> sources;
    std::vector<Turn> turns, chunks;
};

constexpr bool kDecoder = true, kGenerator = false;

// Kernels of our own on both sides, both at work.
constexpr HelpersView kBoth{true, true, false, true, true, false};

HelpersView with(HelpersView v, bool HelpersView::*field, bool value) {
    v.*field = value;
    return v;
}

}  // namespace

TEST(auto_chunks_double_while_frames_wait) {
    Decoding d(0.01);
    d.add(request(-1), {0, 0, 40});
    d.streams[0].generated = 30;  // and more to come
    d.sources[0] = {0, 0.001, 40};
    d.run();
    CHECK(d.sizes(d.chunks, 0) == std::vector<int>({1, 2, 4, 8, 8, 8, 8, 1}));
}

TEST(auto_chunks_grow_with_the_audio_in_hand_and_nobody_falls_silent) {
    for (const double every : {0.02, 0.04, 0.06, 0.075}) {
        Decoding d(0.004);
        d.add(request(-1), {0, every, 200});
        d.run();
        const std::vector<int> sizes = d.sizes(d.chunks, 0);
        CHECK_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), 200);
        CHECK_EQ(sizes[0], 1);
        for (size_t i = 1; i < sizes.size(); i++) CHECK(sizes[i] <= 2 * sizes[i - 1]);
        CHECK(*std::max_element(sizes.begin(), sizes.end()) >= (every < 0.05 ? 8 : 2));
        CHECK(d.longest_silence(0) <= 1e-9);
    }
}

TEST(waiting_frames_fall_due_while_half_the_audio_in_hand_still_plays) {
    Progress p = running(-1, 6, 5, 4);  // one frame waits, for eight
    CHECK_NEAR(due_at(p), 10 + (5 - 4) * kFrame, 1e-9);
    const double due = due_at(p);
    CHECK(!next_to_decode(all({p}), 0, due - 1e-6));
    CHECK(next_to_decode(all({p}), 0, due) == 0u);
    CHECK_EQ(next_turn(p), 1);
    p.generated = 8;  // the more wait, the sooner
    CHECK_NEAR(due_at(p), 10 + (5 - 8) * kFrame, 1e-9);
    CHECK_EQ(next_turn(p), 3);
    p.generated = 13;
    CHECK_EQ(due_at(p), -kNever);
    CHECK_EQ(next_turn(p), 8);
    p.generated = 6;
    p.all_generated = true;
    CHECK_EQ(due_at(p), -kNever);
    p.decoding = true;
    CHECK_EQ(due_at(p), kNever);

    p = running(-1, 6, 5, 4);
    p.skip_frames = 2;  // nobody hears them
    CHECK_NEAR(due_at(p), 10 + (3 - 4) * kFrame, 1e-9);
    const std::vector<Progress> streams{p, running(-1, 3, 2, 1), running(3, 5, 3, 3)};
    CHECK_NEAR(next_due(all(streams)), 10 + (2 - 4) * kFrame, 1e-9);
    CHECK_EQ(next_due({}), kNever);
}

TEST(chunks_are_what_was_asked_for_and_turns_are_short) {
    for (const int chunk : {1, 3, 8, 20, 100}) {
        Decoding d(0.01);
        d.add(request(chunk), {0, 0.02, 230});
        d.run();
        std::vector<int> expected(static_cast<size_t>(230 / chunk), chunk);
        if (230 % chunk > 0) expected.push_back(230 % chunk);
        CHECK(d.sizes(d.chunks, 0) == expected);
        for (const auto &turn : d.turns) CHECK(turn.frames <= 8);
    }
    // A turn never waits for frames beyond its chunk, nor goes beyond it.
    Progress p = request(20);
    p.generated = 30;
    p.taken = 16;
    CHECK_EQ(next_turn(p), 4);
    p.generated = 19;
    CHECK_EQ(due_at(p), kNever);
    p.all_generated = true;
    CHECK_EQ(next_turn(p), 3);
    CHECK_EQ(due_at(p), -kNever);
}

TEST(all_in_one_is_decoded_after_the_last_frame) {
    Progress p = request(0);
    p.generated = 100;
    CHECK_EQ(due_at(p), kNever);
    p.silence_guarded = true;  // someone must hear whether it is silent
    CHECK_EQ(due_at(p), -kNever);
    p.generated = 7;
    CHECK_EQ(due_at(p), kNever);
    p.silence_guarded = false;
    p.all_generated = true;
    CHECK_EQ(due_at(p), -kNever);
    for (const bool guarded : {false, true}) {
        Decoding d(0.01);
        Progress whole = request(0);
        whole.silence_guarded = guarded;
        d.add(whole, {0, 0.1, 60});
        d.run();
        CHECK(d.sizes(d.turns, 0) == std::vector<int>({8, 8, 8, 8, 8, 8, 8, 4}));
        CHECK(d.sizes(d.chunks, 0) == std::vector<int>({60}));
        CHECK_EQ(d.turns[0].begin < 0.1 * 59, guarded);
    }
}

// The whole utterance of one, 400 frames, takes the decoder eight seconds.
TEST(whoever_wants_much_at_once_lets_others_in_between) {
    for (const int chunk : {0, 100, 400}) {
        Decoding d(0.02);
        d.add(request(chunk), {0, 0, 400});
        d.add(request(1), {0, kFrame, 100});    // in real time, nothing in hand
        d.add(request(-1), {2.05, 0.05, 100});  // comes later
        d.run();
        CHECK_EQ(std::accumulate(d.turns.begin(), d.turns.end(), 0,
                                 [](int n, const auto &t) { return n + t.frames; }),
                 600);
        const double turn = 8 * d.cost;
        CHECK(d.longest_silence(1) <= 2 * turn);
        CHECK(d.longest_silence(2) <= 2 * turn);
        const auto first = std::find_if(d.chunks.begin(), d.chunks.end(),
                                        [](const auto &c) { return c.stream == 2; });
        CHECK(first->end - 2.05 <= 2 * turn);
        CHECK(d.streams[0].finished);
    }
}

TEST(who_has_audio_in_hand_waits_for_who_has_none) {
    const Progress rich = running(1, 60, 50, 1), poor = running(1, 31, 30, 1);
    Progress fresh = request(-1);
    fresh.generated = 1;
    for (const size_t rotation : {0u, 1u, 2u}) {
        CHECK(next_to_decode(all({rich, poor}), rotation, 11) == 1u);
        CHECK(next_to_decode(all({rich, fresh, poor}), rotation, 11) == 1u);
    }
    // Frames that are only collected are patient, for a while.
    Progress whole = request(0);
    whole.generated = 400;
    whole.all_generated = true;
    whole.served = 11;
    CHECK(next_to_decode(all({whole, poor}), 0, 12) == 0u);  // 0.4 s in hand: poor is dry at 12.4
    whole.served = 12;
    CHECK(next_to_decode(all({whole, poor}), 0, 12) == 1u);
    CHECK(next_to_decode(all({whole, rich}), 0, 12) == 0u);
}

TEST(equals_take_turns) {
    Decoding d(0.1);  // slower than speech: all are always silent
    for (const int chunk : {1, 1, 1, 0}) d.add(request(chunk), {0, 0, 4000});
    d.run(400);
    std::vector<int> turns(4);
    for (const auto &t : d.turns) turns[t.stream]++;
    CHECK_NEAR(turns[0], turns[1], 1);
    CHECK_NEAR(turns[1], turns[2], 1);
    // Who collects has a turn after at least half a second, and at most one of each other then.
    CHECK(turns[3] > 100 && turns[3] <= turns[0]);
}

TEST(a_slow_reader_waits_alone) {
    Progress slow = running(1, 300, 256, 1);
    slow.unread = 256;
    CHECK(reader_full(slow));
    CHECK_EQ(due_at(slow), kNever);
    CHECK(!decoder_behind(all({slow})));
    const Progress other = running(1, 31, 30, 1);
    CHECK(next_to_decode(all({slow, other}), 0, 11) == 1u);
    slow.generated = 256 + 63;
    CHECK(next_to_generate(all({slow, other}), 0, 2, 11) == std::vector<size_t>({0, 1}));
    slow.generated++;
    CHECK(next_to_generate(all({slow, other}), 0, 2, 11) == std::vector<size_t>({1}));
    slow.unread--;
    CHECK_EQ(due_at(slow), -kNever);
    CHECK(decoder_behind(all({slow})));
}

TEST(text_is_awaited) {
    Progress p = request(1);
    p.text_open = true;
    CHECK(!awaits_text(p));  // the first frame needs none
    p.generated = p.taken = 1;
    CHECK(awaits_text(p));
    CHECK(next_to_generate(all({p}), 0, 1, 0).empty());
    p.text_known = 1;
    CHECK(!awaits_text(p));
    CHECK_EQ(next_to_generate(all({p}), 0, 1, 0).size(), size_t{1});
    p.generated = p.taken = 2;
    CHECK(awaits_text(p));
    p.text_open = false;
    CHECK(!awaits_text(p));
    p.text_open = true;
    p.all_generated = true;
    CHECK(!awaits_text(p));
    CHECK(next_to_generate(all({p}), 0, 1, 0).empty());
}

TEST(all_streams_advance_alike) {
    std::vector<Progress> streams(20, request(0));
    for (size_t rotation = 0; rotation < 100; rotation++) {
        const auto batch = next_to_generate(all(streams), rotation, 2, 0);
        CHECK_EQ(batch.size(), size_t{16});
        for (const size_t i : batch) streams[i].generated++;
    }
    for (const Progress &p : streams) CHECK_EQ(p.generated, 80);
}

TEST(the_first_sound_of_the_only_stream_goes_before_its_next_frame) {
    Progress p = request(-1);
    CHECK_EQ(next_to_generate(all({p}), 0, 2, 0).size(), size_t{1});
    p.generated = 1;
    CHECK(next_to_generate(all({p}), 0, 2, 0).empty());
    CHECK_EQ(next_to_generate(all({p}), 0, 1, 0).size(), size_t{1});  // no second thread
    CHECK_EQ(next_to_generate(all({p, request(-1)}), 0, 2, 0).size(), size_t{2});
    p.begin_turn();
    CHECK(next_to_generate(all({p}), 0, 2, 0).empty());
    p.end_turn(1);
    p.deliver(true, 1);
    CHECK_EQ(next_to_generate(all({p}), 0, 2, 1).size(), size_t{1});

    // Of a large chunk only the last turn.
    p = request(12);
    p.generated = 8;
    CHECK(!first_chunk_due(p, 0));
    p.begin_turn();
    CHECK(!first_chunk_due(p, 0));
    p.end_turn(1);
    p.generated = 12;
    CHECK(first_chunk_due(p, 0));
    p.begin_turn();
    CHECK(first_chunk_due(p, 0));
    p.end_turn(1);
    p.deliver(true, 1);
    p.generated = 24;
    CHECK(!first_chunk_due(p, 1));
}

TEST(the_decoder_is_behind_when_as_many_wait_as_its_last_turn_had) {
    CHECK(!decoder_behind(all({running(-1, 8, 5, 4)})));
    CHECK(decoder_behind(all({running(-1, 8, 5, 4), running(-1, 9, 5, 4)})));
    CHECK(decoder_behind(all({running(100, 66, 58, 8)})));
    CHECK(!decoder_behind(all({running(0, 90, 5, 4)})));  // its frames are meant to wait
    CHECK(!decoder_behind(all({request(1)})));
    Progress over = running(-1, 9, 5, 4);
    over.finished = true;
    CHECK(!decoder_behind(all({over})));
}

TEST(the_generator_has_them_while_the_decoder_keeps_up) {
    CHECK_EQ(helpers_decode(kBoth), kGenerator);
}

TEST(the_decoder_has_them_while_frames_wait) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::decoder_behind, true)), kDecoder);
}

TEST(nobody_waits_with_a_thread_that_rests) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::generating, false)), kDecoder);
    const HelpersView behind = with(kBoth, &HelpersView::decoder_behind, true);
    CHECK_EQ(helpers_decode(with(behind, &HelpersView::decoding, false)), kGenerator);
}

TEST(a_decoder_on_a_device_takes_none) {
    HelpersView v = with(kBoth, &HelpersView::decoder_shares, false);
    for (const bool behind : {false, true}) {
        for (const bool generating : {false, true}) {
            v.decoder_behind = behind;
            v.generating = generating;
            CHECK_EQ(helpers_decode(v), kGenerator);
        }
    }
}

TEST(a_generator_on_another_device_leaves_them_to_the_decoder) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::generator_shares, false)), kDecoder);
}

TEST(cores_that_ggml_keeps_busy_are_not_fought_for) {
    HelpersView v = with(kBoth, &HelpersView::generator_brings_threads, true);
    v.generator_shares = false;
    v.decoder_behind = true;
    CHECK_EQ(helpers_decode(v), kGenerator);
    v.generating = false;
    CHECK_EQ(helpers_decode(v), kDecoder);
}
