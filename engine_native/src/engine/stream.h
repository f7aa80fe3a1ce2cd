// One utterance on its way through the engine's two threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "engine/schedule.h"

namespace kz {

struct PcmChunk {
    std::vector<float> pcm;  // without the frames that the request skips
    int index = 0, first_frame = 0, n_frames = 0;
    double t_s = 0;
};

class Stream {
  public:
    Stream(const Model &model, const kz_stream_params &params);

    const Request request;
    std::atomic<bool> stop{false};              // its audio is not wanted: ends a running pass
    Generation generation;                      // the generator thread's
    const std::unique_ptr<DecoderState> codec;  // the decoder thread's

    // The rest is guarded by the engine's mutex.
    const Progress &progress() const { return progress_; }
    std::condition_variable readable;  // notified with every change for a reader

    // For the reader.
    void push_text(const int32_t *ids, int32_t n, bool closing);
    bool read(PcmChunk &chunk);  // false: no chunk is ready
    void cancel();
    void fail(kz_status status, const std::string &text);
    void rethrow() const;  // what it failed with, if it did
    void result(kz_result &result) const;

    // For the generator thread.
    void note_text_wait(double now);
    Turn begin_turn();
    void end_turn(Turn &turn);

    // For the decoder thread: the codes of the next turn; that it is over; and its audio.
    std::vector<int32_t> begin_decoding(PcmChunk &piece);
    void end_decoding(const CodecStageTimes &stages, double seconds);
    void decoded(PcmChunk piece);

  private:
    void end(kz_ended how);
    void settle();
    void hand_over();
    void guard_silence(PcmChunk &piece);

    const size_t n_codebooks_, samples_per_frame_;
    const double opened_;
    Progress progress_;
    std::vector<int32_t> text_;    // ids to feed beside frames, as far as they have come
    std::vector<int32_t> codes_;   // [generated][n_codebooks]
    int silent_frames_ = 0;        // at the end of what was decoded
    PcmChunk collected_;           // the beginning of the next chunk
    std::deque<PcmChunk> chunks_;  // ready, not yet read

    kz_ended ended_ = KZ_ENDED_NOT;
    kz_status error_ = KZ_OK;
    std::string error_text_;

    struct Figures {                            // s
        double waiting_since = -1, waited = 0;  // for text
        double last_chunk = -1, waited_before_last = 0;
        double decoder = 0;
        GeneratorTimes generator;
        CodecStageTimes codec;
    } figures_;
};

}  // namespace kz
