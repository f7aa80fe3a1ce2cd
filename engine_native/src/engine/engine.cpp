#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "runtime/status.h"

namespace kz {

namespace {

constexpr int kMaxQueuedFrames = 64;   // generated, not yet decoded
constexpr int kMaxUnreadFrames = 256;  // decoded, not yet read: 20 s
constexpr int kMaxAutoChunk = Decoder::kMaxFrames;
constexpr size_t kMaxStreams = 16;  // streams in a turn of the generator

}  // namespace

Engine::Engine(std::unique_ptr<const Model> model, int n_threads)
    : model_(std::move(model)), n_threads_(n_threads) {
    try {
        start_threads();
    } catch (...) {
        close();
        throw;
    }
}

Engine::~Engine() {
    close();
}

void Engine::close() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
        for (const auto &s : streams_) {
            if (!s->finished)
                fail_stream(*s, KZ_ERR_CLOSED, "the model was closed while the stream was open");
        }
    }
    wake_generator();
    wake_decoder();
    if (generator_.joinable()) generator_.join();
    if (decoder_.joinable()) decoder_.join();
    helpers_.reset();
}

std::shared_ptr<Stream> Engine::open(const kz_stream_params &params) {
    auto stream = std::make_shared<Stream>(*model_, params);
    stream->text_open = stream->request.text_open;
    {
        const std::lock_guard lock(mutex_);
        if (closing_) fail(KZ_ERR_CLOSED, "the model is closed");
        streams_.push_back(stream);
    }
    wake_generator();
    return stream;
}

void Engine::push_text(Stream &stream, const int32_t *ids, int32_t n, bool closing) {
    if (n < 0 || (n > 0 && !ids)) fail(KZ_ERR_ARGUMENT, "%d text ids at a null pointer", n);
    check_text_ids(*model_, ids, n, "a text id");
    {
        const std::lock_guard lock(mutex_);
        if (!stream.text_open) fail(KZ_ERR_ARGUMENT, "the text of this stream is complete");
        stream.pushed.insert(stream.pushed.end(), ids, ids + n);
        if (closing) stream.text_open = false;
    }
    wake_generator();
}

kz_status Engine::read(Stream &stream, int timeout_ms, PcmChunk &chunk) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return !stream.chunks.empty() || stream.finished; };
    if (timeout_ms < 0) {
        stream.readable.wait(lock, ready);
    } else if (!stream.readable.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) {
        return KZ_TIMEOUT;
    }
    if (!stream.chunks.empty()) {
        chunk = std::move(stream.chunks.front());
        stream.chunks.pop_front();
        stream.queued_frames -= chunk.n_frames;
        lock.unlock();
        wake_decoder();
        return KZ_OK;
    }
    if (stream.error != KZ_OK) fail(stream.error, "%s", stream.error_text.c_str());
    return KZ_END;
}

void Engine::cancel(Stream &stream) {
    {
        const std::lock_guard lock(mutex_);
        if (stream.finished && stream.chunks.empty()) return;
        stream.stop = true;
        stream.ended = KZ_ENDED_CANCELLED;
        stream.generated = stream.finished = true;
        stream.chunks.clear();
        stream.queued_frames = 0;
        if (stream.waiting_since >= 0) stream.waited += now_s() - stream.waiting_since;
        stream.waiting_since = -1;
        stream.readable.notify_all();
    }
    wake_generator();
    wake_decoder();
}

void Engine::result(Stream &s, kz_result &r) {
    std::unique_lock lock(mutex_);
    if (!s.finished)
        fail(KZ_ERR_ARGUMENT, "the stream is still running: read it to its end or cancel it first");
    // A cancelled stream may have a frame in hand; its codes move no more after this.
    s.readable.wait(lock, [&] { return !s.generating && !s.decoding; });
    r.ended = s.ended;
    r.n_frames = s.n_frames;
    r.n_chunks = s.n_chunks;
    r.codes = s.codes.data();
    r.ttfb_s = s.first_chunk < 0 ? -1 : s.first_chunk - s.opened;
    r.wait_s = s.waited;
    r.work_s = s.last_chunk < 0 ? 0 : s.last_chunk - s.opened - s.waited_before_last;
    const double stages[KZ_N_STAGES] = {s.generator_times.prefill, s.generator_times.talker,
                                        s.generator_times.cp,      s.generator_times.sample,
                                        s.codec_times.quant,       s.codec_times.preconv,
                                        s.codec_times.pretr,       s.codec_times.upsample,
                                        s.codec_times.bigvgan,     s.decode_time};
    std::copy(stages, stages + KZ_N_STAGES, r.stage_s);
}

void Engine::release(const std::shared_ptr<Stream> &stream) {
    cancel(*stream);
    const std::lock_guard lock(mutex_);
    streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
}

// The caller holds the mutex.
void Engine::fail_stream(Stream &s, kz_status status, const std::string &text) {
    s.stop = true;
    s.error = status;
    s.error_text = text;
    s.ended = KZ_ENDED_ERROR;
    s.generated = s.finished = true;
    s.readable.notify_all();
}

// The caller holds the mutex.  Ends the stream once its last frame has been decoded.
void Engine::settle(Stream &s) {
    if (s.generated && !s.decoding && s.taken == s.n_frames) s.finished = true;
    s.readable.notify_all();
}

// Whether the id to feed beside the last frame is known: text is never padded before its end.
bool Engine::text_ready(const Stream &s) const {
    const size_t have = s.request.trailing_ids.size() + s.pushed.size();
    return s.n_frames == 0 || static_cast<size_t>(s.n_frames) <= have || !s.text_open;
}

// Notes when a stream begins and ends to wait for text.
bool Engine::can_generate(Stream &s) const {
    const int queue = std::max(kMaxQueuedFrames, s.request.chunk);
    const bool full = s.request.chunk != 0 && s.n_frames - s.taken >= queue;
    if (s.generated || full) return false;
    if (!text_ready(s)) {
        if (s.waiting_since < 0) s.waiting_since = now_s();
        return false;
    }
    if (s.waiting_since >= 0) {
        s.waited += now_s() - s.waiting_since;
        s.waiting_since = -1;
    }
    return true;
}

// After frame n - 1, trailing id n - 1 is fed; end-of-speech opens once all have been.
Turn Engine::turn_of(Stream &s) const {
    const std::vector<int32_t> &first = s.request.trailing_ids;
    const size_t have = first.size() + s.pushed.size();
    const auto index = static_cast<size_t>(s.n_frames);
    int32_t id = s.request.pad_text_id;
    if (index > 0 && index <= have)
        id = index <= first.size() ? first[index - 1] : s.pushed[index - 1 - first.size()];
    Turn turn{};
    turn.generation = &s.generation;
    turn.next_text = id;
    turn.n_text = s.request.n_text_tokens + static_cast<int>(have);
    turn.eos_allowed = !s.text_open && index >= have;
    turn.outcome = Turn::Outcome::kStopped;
    return turn;
}

Engine::Batch Engine::next_to_generate() {
    Batch batch;
    const size_t n = streams_.size();
    for (size_t i = 0; i < n && batch.streams.size() < kMaxStreams; i++) {
        const std::shared_ptr<Stream> &stream = streams_[(generate_turn_ + i) % n];
        // The oracle of the code predictor works alone.
        const bool apart = !batch.streams.empty() &&
                           stream->request.cp_recompute != batch.streams[0]->request.cp_recompute;
        if (apart || !can_generate(*stream)) continue;
        batch.streams.push_back(stream);
        batch.turns.push_back(turn_of(*stream));
    }
    if (n > 0) generate_turn_ = (generate_turn_ + 1) % n;
    // A listener waits for the first sound of the only stream: both threads decode it before the
    // next frame is generated.
    if (n_threads_ > 1 && batch.streams.size() == 1 && first_chunk_due(*batch.streams[0]))
        return {};
    return batch;
}

// The caller holds the mutex.
void Engine::generated(Stream &s, Turn &turn) {
    s.generator_times = s.generation.times();
    if (s.generated) return;  // cancelled meanwhile
    if (turn.status != KZ_OK) {
        fail_stream(s, turn.status, turn.error);
        return;
    }
    switch (turn.outcome) {
        case Turn::Outcome::kFrame:
            s.codes.insert(s.codes.end(), turn.codes.begin(), turn.codes.end());
            s.n_frames++;
            if (s.n_frames < s.request.max_frames) return;
            s.ended = KZ_ENDED_MAX_FRAMES;
            break;
        case Turn::Outcome::kEos:
            s.ended = KZ_ENDED_EOS;
            break;
        case Turn::Outcome::kMaxFrames:
            s.ended = KZ_ENDED_MAX_FRAMES;
            break;
        case Turn::Outcome::kRunaway:
            s.ended = KZ_ENDED_RUNAWAY;
            break;
        case Turn::Outcome::kRepetition:
            s.ended = KZ_ENDED_REPETITION;
            break;
        case Turn::Outcome::kPrompt:
        case Turn::Outcome::kStopped:
            return;
    }
    s.generated = true;
    settle(s);
}

bool Engine::reader_full(const Stream &s) const {
    return s.queued_frames >= kMaxUnreadFrames;
}

// How many frames to decode now; 0: wait for more.
int Engine::decodable(const Stream &s) const {
    const int available = s.n_frames - s.taken;
    if (s.finished || s.decoding || available == 0 || reader_full(s)) return 0;
    if (s.request.chunk == 0) return s.generated ? available : 0;
    if (s.request.chunk > 0)
        return available >= s.request.chunk ? s.request.chunk : (s.generated ? available : 0);
    // auto: the first frame at once, then as large as the audio the listener has in hand allows,
    // at most twice the chunk before.
    if (s.n_chunks == 0) return 1;
    const double frame_s = static_cast<double>(model_->codec.config.samples_per_frame) /
                           model_->codec.config.sample_rate;
    const double in_hand = s.taken * frame_s - (now_s() - s.first_chunk);
    const int most = std::min(kMaxAutoChunk, std::max(1, 2 * s.last_size));
    const int wanted = std::clamp(static_cast<int>(in_hand / (2 * frame_s)), 1, most);
    return available >= wanted || s.generated ? std::min(available, most) : 0;
}

bool Engine::first_chunk_due(const Stream &s) const {
    return s.n_chunks == 0 && (s.decoding || decodable(s) > 0);
}

std::shared_ptr<Stream> Engine::next_to_decode(int &n_frames) {
    for (size_t i = 0; i < streams_.size(); i++) {
        const size_t turn = (decode_turn_ + i) % streams_.size();
        n_frames = decodable(*streams_[turn]);
        if (n_frames > 0) {
            decode_turn_ = turn + 1;
            return streams_[turn];
        }
    }
    return nullptr;
}

// The caller holds the mutex.  Ends the stream after the frame that completes a silence of
// guard.silence_frames, wherever the chunks begin; what was generated beyond it is dropped.
void Engine::guard_silence(Stream &s, PcmChunk &chunk) {
    constexpr float kSilent = 0.00316f;  // -50 dB
    const int most = s.request.guard.silence_frames;
    const auto width = static_cast<size_t>(model_->codec.config.samples_per_frame);
    if (most == 0 || s.finished || chunk.pcm.size() < width) return;
    const int skipped = chunk.n_frames - static_cast<int>(chunk.pcm.size() / width);
    for (int i = skipped; i < chunk.n_frames; i++) {
        const auto begin = chunk.pcm.begin() + static_cast<ptrdiff_t>(width) * (i - skipped);
        const bool silent = std::all_of(begin, begin + static_cast<ptrdiff_t>(width),
                                        [](float x) { return std::abs(x) < kSilent; });
        s.silent_frames = silent ? s.silent_frames + 1 : 0;
        if (s.silent_frames < most) continue;
        chunk.n_frames = i + 1;
        chunk.pcm.erase(begin + static_cast<ptrdiff_t>(width), chunk.pcm.end());
        s.n_frames = s.taken = chunk.first_frame + chunk.n_frames;
        s.codes.resize(static_cast<size_t>(s.n_frames) *
                       static_cast<size_t>(model_->n_codebooks()));
        s.ended = KZ_ENDED_SILENCE;
        s.generated = true;
        s.stop = true;  // a frame in the making is not wanted any more
        return;
    }
}

// The caller holds the mutex.
void Engine::decoded(Stream &s, PcmChunk chunk) {
    guard_silence(s, chunk);
    if (!s.finished && !chunk.pcm.empty()) {
        const double now = now_s();
        if (s.first_chunk < 0) s.first_chunk = now;
        s.last_chunk = now;
        s.waited_before_last = s.waited;
        s.last_size = chunk.n_frames;
        s.queued_frames += chunk.n_frames;
        chunk.index = s.n_chunks++;
        chunk.t_s = now - s.opened;
        s.chunks.push_back(std::move(chunk));
    }
    settle(s);
}

}  // namespace kz
