#include "engine/engine.h"

#include <algorithm>
#include <system_error>

#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

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

void Engine::start_threads() {
    helpers_ = std::make_unique<Helpers>(generator_team_, decoder_team_, n_threads_ - 2);
    try {
        generator_ = std::thread([this] { generate_loop(); });
        decoder_ = std::thread([this] { decode_loop(); });
    } catch (const std::system_error &e) {
        fail(KZ_ERR_MEMORY, "cannot start a thread: %s", e.what());
    }
}

void Engine::close() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
        for (const auto &s : streams_) {
            if (!s->progress().finished)
                s->fail(KZ_ERR_CLOSED, "the model was closed while the stream was open");
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
        stream.push_text(ids, n, closing);
    }
    wake_generator();
}

kz_status Engine::read(Stream &stream, int timeout_ms, PcmChunk &chunk) {
    std::unique_lock lock(mutex_);
    bool found = false;
    const auto ready = [&] { return (found = stream.read(chunk)) || stream.progress().finished; };
    if (timeout_ms < 0) {
        stream.readable.wait(lock, ready);
    } else if (!stream.readable.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) {
        return KZ_TIMEOUT;
    }
    if (!found) {
        stream.rethrow();
        return KZ_END;
    }
    lock.unlock();
    wake_decoder();
    return KZ_OK;
}

void Engine::cancel(Stream &stream) {
    {
        const std::lock_guard lock(mutex_);
        stream.cancel();
    }
    wake_generator();
    wake_decoder();
}

void Engine::result(Stream &stream, kz_result &result) {
    std::unique_lock lock(mutex_);
    const Progress &p = stream.progress();
    if (!p.finished)
        fail(KZ_ERR_ARGUMENT, "the stream is still running: read it to its end or cancel it first");
    // A cancelled stream may have a frame in hand; its codes move no more after this.
    stream.readable.wait(lock, [&] { return !p.generating && !p.decoding; });
    stream.result(result);
}

void Engine::release(const std::shared_ptr<Stream> &stream) {
    cancel(*stream);
    const std::lock_guard lock(mutex_);
    streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
}

void Engine::wake_generator() {
    generator_wanted_ = true;
    decoder_team_.wake();
    generate_.notify_one();
}

void Engine::wake_decoder() {
    decoder_wanted_ = true;
    generator_team_.wake();
    decode_.notify_one();
}

std::vector<const Progress *> Engine::progress() const {
    std::vector<const Progress *> all;
    all.reserve(streams_.size());
    for (const auto &s : streams_) all.push_back(&s->progress());
    return all;
}

Engine::Batch Engine::next_batch() {
    const double now = now_s();
    for (const auto &s : streams_) s->note_text_wait(now);
    Batch batch;
    for (const size_t i : next_to_generate(progress(), generate_turn_, n_threads_, now)) {
        batch.streams.push_back(streams_[i]);
        batch.turns.push_back(streams_[i]->begin_turn());
    }
    generate_turn_++;
    return batch;
}

std::shared_ptr<Stream> Engine::next_to_decode() {
    const auto next = kz::next_to_decode(progress(), decode_turn_, now_s());
    if (!next) return nullptr;
    decode_turn_ = *next + 1;
    return streams_[*next];
}

void Engine::place_helpers() {
    const LmWeights &talker = model_->talker.lm, &cp = model_->cp.lm;
    helpers_->prefer_second(helpers_decode({
        .generating = generating_,
        .decoding = decoding_,
        .decoder_behind = decoder_behind(progress()),
        .generator_shares = talker.packed() || cp.packed(),
        .decoder_shares = model_->codec.shares(),
        .generator_brings_threads = talker.brings_threads() || cp.brings_threads(),
    }));
}

void Engine::wait_to_generate(std::unique_lock<std::mutex> &lock) {
    if (decoding_ && n_threads_ > 1) {
        generator_wanted_ = false;
        lock.unlock();
        decoder_team_.help(generator_wanted_);
        lock.lock();
    } else {
        generate_.wait(lock);
    }
}

bool Engine::wait_to_decode(std::unique_lock<std::mutex> &lock, bool nothing_to_share) {
    // Frames that wait for a larger turn fall due as the listener's audio runs down.
    const double due = next_due(progress());
    bool over = true;
    if (generating_ && n_threads_ > 1 && !nothing_to_share) {
        decoder_wanted_ = false;
        lock.unlock();
        if (due < kNever) {
            over = generator_team_.help_until(decoder_wanted_, due);
        } else {
            generator_team_.help(decoder_wanted_);
        }
        lock.lock();
    } else if (due < kNever) {
        decode_.wait_until(lock, moment(due));
    } else {
        decode_.wait(lock);
    }
    return !over;
}

void Engine::generate_loop() {
    std::unique_ptr<Generator> generator;
    std::unique_lock lock(mutex_);
    while (true) {
        Batch batch;
        while (!closing_ && (batch = next_batch()).streams.empty()) wait_to_generate(lock);
        if (closing_) return;
        generating_ = true;
        place_helpers();
        lock.unlock();
        decode_.notify_one();  // with nothing to decode its thread may help

        const kz_status status = guarded([&] {
            if (!generator)
                generator =
                    std::make_unique<Generator>(*model_, generator_team_, generator_threads());
            const bool alone = batch.streams.size() == 1;
            generator->set_stop(alone ? &batch.streams[0]->stop : nullptr);
            kz::advance(*generator, batch.turns);
        });
        const std::string error = status == KZ_OK ? "" : last_error();

        lock.lock();
        generating_ = false;
        for (size_t i = 0; i < batch.streams.size(); i++) {
            Turn &turn = batch.turns[i];
            if (status != KZ_OK) {
                turn.status = status;
                turn.error = error;
            }
            batch.streams[i]->end_turn(turn);
        }
        place_helpers();
        wake_decoder();
    }
}

void Engine::decode_loop() {
    std::unique_ptr<Decoder> decoder;
    std::unique_lock lock(mutex_);
    while (true) {
        std::shared_ptr<Stream> stream;
        bool nothing_to_share = false;
        while (!closing_ && !(stream = next_to_decode()))
            nothing_to_share = wait_to_decode(lock, nothing_to_share);
        if (closing_) return;
        PcmChunk piece;
        const std::vector<int32_t> codes = stream->begin_decoding(piece);
        decoding_ = true;
        place_helpers();
        lock.unlock();
        wake_generator();  // there is room for another frame, or something to help with

        const double start = now_s();
        CodecStageTimes times;
        const kz_status status = guarded([&] {
            if (!decoder) decoder = model_->codec.make_decoder(&decoder_team_, decoder_threads());
            decode(*decoder, *stream, codes, piece, times);
        });
        const std::string error = status == KZ_OK ? "" : last_error();

        lock.lock();
        decoding_ = false;
        stream->end_decoding(times, now_s() - start);
        place_helpers();
        if (status == KZ_OK) {
            stream->decoded(std::move(piece));
        } else if (!stream->progress().finished) {
            stream->fail(status, error);
        }
        wake_generator();
    }
}

// codes -> piece.pcm, without the frames that the request skips; empty when the stream was stopped.
void Engine::decode(Decoder &decoder, Stream &stream, const std::vector<int32_t> &codes,
                    PcmChunk &piece, CodecStageTimes &times) const {
    const auto width = static_cast<ptrdiff_t>(model_->codec.config.samples_per_frame);
    std::vector<float> pcm(static_cast<size_t>(piece.n_frames * width));
    decoder.set_stop(&stream.stop);
    if (!decoder.decode(*stream.codec, codes.data(), piece.n_frames, pcm.data(), &times)) return;
    const int skipped =
        std::clamp(stream.request.skip_frames - piece.first_frame, 0, piece.n_frames);
    pcm.erase(pcm.begin(), pcm.begin() + skipped * width);
    piece.pcm = std::move(pcm);
}

}  // namespace kz
