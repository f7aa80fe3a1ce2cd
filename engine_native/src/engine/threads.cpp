// The loops of the engine's threads.  The policy, which stream is next and how many frames a chunk
// takes, is in engine.cpp.
#include <algorithm>
#include <system_error>

#include "engine/engine.h"
#include "engine/helpers_policy.h"
#include "runtime/status.h"

namespace kz {

void Engine::start_threads() {
    helpers_ = std::make_unique<Helpers>(generator_team_, decoder_team_, n_threads_ - 2);
    try {
        generator_ = std::thread([this] { generate_loop(); });
        decoder_ = std::thread([this] { decode_loop(); });
    } catch (const std::system_error &e) {
        fail(KZ_ERR_MEMORY, "cannot start a thread: %s", e.what());
    }
}

// Whether a stream's frames come faster than they are decoded: as many wait as its last chunk had.
// A stream whose reader is slow waits for that reader, not for the decoder.
bool Engine::decoder_behind() const {
    return std::any_of(streams_.begin(), streams_.end(), [this](const auto &s) {
        return !s->finished && !reader_full(*s) && s->request.chunk != 0 && s->n_chunks > 0 &&
               s->n_frames - s->taken >= s->last_size;
    });
}

// The caller holds the mutex.
void Engine::place_helpers() {
    const LmWeights &talker = model_->talker.lm, &cp = model_->cp.lm;
    helpers_->prefer_second(helpers_decode({
        .generating = generating_,
        .decoding = decoding_,
        .decoder_behind = decoder_behind(),
        .generator_shares = talker.packed() || cp.packed(),
        .decoder_shares = model_->codec.shares(),
        .generator_brings_threads = talker.brings_threads() || cp.brings_threads(),
    }));
}

void Engine::generate_loop() {
    std::unique_ptr<Generator> generator;
    std::unique_lock lock(mutex_);
    while (true) {
        Batch batch;
        while (!closing_ && (batch = next_to_generate()).streams.empty()) wait_to_generate(lock);
        if (closing_) return;
        for (const auto &stream : batch.streams) stream->generating = true;
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
            Stream &stream = *batch.streams[i];
            Turn &turn = batch.turns[i];
            if (status != KZ_OK) {
                turn.status = status;
                turn.error = error;
            }
            stream.generating = false;
            generated(stream, turn);
            stream.readable.notify_all();
        }
        place_helpers();
        wake_decoder();
    }
}

// Makes a thread look for work of its own, wherever it waits.
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

// The caller holds the mutex, which is free while waiting.
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

// The caller holds the mutex, which is free while waiting.
void Engine::wait_to_decode(std::unique_lock<std::mutex> &lock) {
    // Frames that wait for a larger chunk fall due as the listener's audio runs down.
    const bool due = std::any_of(streams_.begin(), streams_.end(), [this](const auto &s) {
        return s->request.chunk < 0 && !s->finished && s->n_frames > s->taken && !reader_full(*s);
    });
    if (due) {
        decode_.wait_for(lock, std::chrono::milliseconds(20));
    } else if (generating_ && n_threads_ > 1) {
        decoder_wanted_ = false;
        lock.unlock();
        generator_team_.help(decoder_wanted_);
        lock.lock();
    } else {
        decode_.wait(lock);
    }
}

void Engine::decode_loop() {
    std::unique_ptr<Decoder> decoder;
    std::unique_lock lock(mutex_);
    while (true) {
        PcmChunk chunk;
        std::shared_ptr<Stream> stream;
        while (!closing_ && !(stream = next_to_decode(chunk.n_frames))) wait_to_decode(lock);
        if (closing_) return;
        chunk.first_frame = stream->taken;
        stream->taken += chunk.n_frames;
        stream->decoding = decoding_ = true;
        place_helpers();
        const auto width = static_cast<ptrdiff_t>(model_->n_codebooks());
        const auto begin = stream->codes.begin() + chunk.first_frame * width;
        const std::vector<int32_t> codes(begin, begin + chunk.n_frames * width);
        lock.unlock();
        wake_generator();  // there is room for another frame, or something to help with

        const double start = now_s();
        CodecStageTimes times;
        const kz_status status = guarded([&] {
            if (!decoder) decoder = model_->codec.make_decoder(&decoder_team_, decoder_threads());
            decode(*decoder, *stream, codes, chunk, times);
        });
        const std::string error = status == KZ_OK ? "" : last_error();

        lock.lock();
        stream->decoding = decoding_ = false;
        place_helpers();
        stream->decode_time += now_s() - start;
        if (stream->request.profile) stream->codec_times += times;
        if (status == KZ_OK) {
            decoded(*stream, std::move(chunk));
        } else if (!stream->finished) {
            fail_stream(*stream, status, error);
        }
        stream->readable.notify_all();
        wake_generator();
    }
}

// codes -> chunk.pcm, without the frames that the request skips; empty when the stream was stopped.
void Engine::decode(Decoder &decoder, Stream &stream, const std::vector<int32_t> &codes,
                    PcmChunk &chunk, CodecStageTimes &times) const {
    const auto width = static_cast<ptrdiff_t>(model_->codec.config.samples_per_frame);
    std::vector<float> pcm(static_cast<size_t>(chunk.n_frames * width));
    decoder.set_stop(&stream.stop);
    if (!decoder.decode(*stream.codec, codes.data(), chunk.n_frames, pcm.data(), &times)) return;
    const int skipped =
        std::clamp(stream.request.skip_frames - chunk.first_frame, 0, chunk.n_frames);
    pcm.erase(pcm.begin(), pcm.begin() + skipped * width);
    chunk.pcm = std::move(pcm);
}

}  // namespace kz
