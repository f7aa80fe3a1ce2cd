// The two threads and the streams they serve.
//
//   generator thread: all streams advance one frame in shared passes -> codes of each stream
//   decoder thread:   codes -> DecoderState of the stream -> chunks of PCM
//
// A thread without work of its own helps the other with its products; threads beyond the two help
// the generator, and the decoder while frames pile up before it.
//
// A stream whose codes or chunks pile up is passed over until its reader catches up; nobody else
// waits for it.  One mutex guards what the threads share; it is never held while computing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/generation.h"
#include "runtime/clock.h"

namespace kz {

class Engine;

struct PcmChunk {
    std::vector<float> pcm;
    int index = 0, first_frame = 0, n_frames = 0;
    double t_s = 0;
};

struct Stream {
    Stream(const Model &model, const kz_stream_params &params)
        : request(model, params),
          generation(model, request),
          codec(model.codec.make_state()),
          opened(now_s()) {}

    const Request request;
    std::atomic<bool> stop{false};  // its audio is not wanted any more: ends a running pass

    Generation generation;                      // generator thread
    const std::unique_ptr<DecoderState> codec;  // decoder thread

    // The rest is guarded by Engine::mutex_.
    std::vector<int32_t> codes;                 // [frames][n_codebooks]
    int n_frames = 0;                           // generated
    int taken = 0;                              // handed to the decoder
    bool generating = false, decoding = false;  // a thread is at work on it
    bool generated = false;                     // no more frames will come
    bool finished = false;                      // no more chunks will come
    kz_ended ended = KZ_ENDED_NOT;
    kz_status error = KZ_OK;
    std::string error_text;
    std::vector<int32_t> pushed;  // text ids of an open text beyond request.trailing_ids
    bool text_open = false;
    std::deque<PcmChunk> chunks;  // ready, not yet read
    int queued_frames = 0;        // audio of chunks, in frames
    int n_chunks = 0, last_size = 0;
    int silent_frames = 0;  // at the end of what was decoded
    const double opened;    // s
    double first_chunk = -1, last_chunk = -1, waiting_since = -1, waited = 0,
           waited_before_last = 0;  // s
    GeneratorTimes generator_times;
    CodecStageTimes codec_times;
    double decode_time = 0;
    std::condition_variable readable;
};

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
    void place_helpers();
    bool decoder_behind() const;
    void generate_loop();
    void decode_loop();
    Batch next_to_generate();
    bool can_generate(Stream &stream) const;
    Turn turn_of(Stream &stream) const;
    void decode(Decoder &decoder, Stream &stream, const std::vector<int32_t> &codes,
                PcmChunk &chunk, CodecStageTimes &times) const;
    bool reader_full(const Stream &stream) const;
    bool first_chunk_due(const Stream &stream) const;
    void wait_to_generate(std::unique_lock<std::mutex> &lock);
    void wait_to_decode(std::unique_lock<std::mutex> &lock);
    void wake_generator();
    void wake_decoder();
    std::shared_ptr<Stream> next_to_decode(int &n_frames);
    bool text_ready(const Stream &stream) const;
    int decodable(const Stream &stream) const;
    void generated(Stream &stream, Turn &turn);
    void decoded(Stream &stream, PcmChunk chunk);
    void guard_silence(Stream &stream, PcmChunk &chunk);
    void fail_stream(Stream &stream, kz_status status, const std::string &text);
    void settle(Stream &stream);

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
