// The two threads and the streams they serve.
//
//   generator thread: all streams advance one frame in shared passes -> codes of each stream
//   decoder thread:   codes -> DecoderState of the stream -> chunks of PCM
//
// A thread without work of its own helps the other with its products; threads beyond the two help
// the generator, and the decoder while frames pile up before it.
//
// A stream whose codes or chunks pile up is passed over until its reader catches up; nobody else
// waits for it.  Who is next is decided in schedule.h.  One mutex guards what the threads share; it
// is never held while computing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/stream.h"

namespace kz {

class Engine {
  public:
    Engine(std::unique_ptr<const Model> model, int n_threads);
    ~Engine();

    const Model &model() const { return *model_; }
    // Threads that compute: two of them at least; on one core they take turns.  Those beyond two
    // are counted where they begin.
    int generator_threads() const { return std::max(1, n_threads_ - 1); }
    int decoder_threads() const { return 1; }

    std::shared_ptr<Stream> open(const kz_stream_params &params);
    void push_text(Stream &stream, const int32_t *ids, int32_t n, bool closing);
    // KZ_OK with a chunk, KZ_END, KZ_TIMEOUT; throws the stream's error.
    kz_status read(Stream &stream, int timeout_ms, PcmChunk &chunk);
    void cancel(Stream &stream);
    void result(Stream &stream, kz_result &result);
    void release(const std::shared_ptr<Stream> &stream);
    // Ends every stream and both threads.
    void close();

  private:
    // What the generator does next: a turn of each of these streams.
    struct Batch {
        std::vector<std::shared_ptr<Stream>> streams;
        std::vector<Turn> turns;
    };

    void start_threads();
    void generate_loop();
    void decode_loop();
    // The caller holds the mutex, which is free while waiting.
    void wait_to_generate(std::unique_lock<std::mutex> &lock);
    // Helps the generator while it has something to share, until frames fall due. nothing_to_share:
    // it had not, a moment ago; its next turn notifies.  Returns whether that is so now.
    bool wait_to_decode(std::unique_lock<std::mutex> &lock, bool nothing_to_share);
    // Make a thread look for work of its own, wherever it waits.
    void wake_generator();
    void wake_decoder();
    // The caller holds the mutex.
    std::vector<const Progress *> progress() const;
    Batch next_batch();
    std::shared_ptr<Stream> next_to_decode();
    void place_helpers();

    void decode(Decoder &decoder, Stream &stream, const std::vector<int32_t> &codes,
                PcmChunk &piece, CodecStageTimes &times) const;

    std::unique_ptr<const Model> model_;
    const int n_threads_;
    std::mutex mutex_;
    std::condition_variable generate_, decode_;
    std::vector<std::shared_ptr<Stream>> streams_;
    size_t generate_turn_ = 0, decode_turn_ = 0;
    bool closing_ = false;
    bool generating_ = false, decoding_ = false;  // a thread is computing
    Team generator_team_, decoder_team_;          // helped by the other thread
    std::atomic<bool> generator_wanted_{false}, decoder_wanted_{false};
    std::unique_ptr<Helpers> helpers_;  // threads beyond the two; placed under mutex_
    std::thread generator_, decoder_;
};

}  // namespace kz
