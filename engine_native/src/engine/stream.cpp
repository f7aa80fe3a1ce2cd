#include "engine/stream.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

Stream::Stream(const Model &model, const kz_stream_params &params)
    : request(model, params),
      generation(model, request),
      codec(model.codec.make_state()),
      n_codebooks_(static_cast<size_t>(model.n_codebooks())),
      samples_per_frame_(static_cast<size_t>(model.codec.config.samples_per_frame)),
      opened_(now_s()),
      text_(request.trailing_ids) {
    progress_.chunk = request.chunk;
    progress_.skip_frames = request.skip_frames;
    progress_.silence_guarded = request.guard.silence_frames > 0;
    progress_.frame_s = static_cast<double>(samples_per_frame_) / model.codec.config.sample_rate;
    progress_.text_known = static_cast<int>(text_.size());
    progress_.text_open = request.text_open;
    progress_.served = opened_;
}

void Stream::push_text(const int32_t *ids, int32_t n, bool closing) {
    if (!progress_.text_open) kz::fail(KZ_ERR_ARGUMENT, "the text of this stream is complete");
    text_.insert(text_.end(), ids, ids + n);
    progress_.text_known = static_cast<int>(text_.size());
    progress_.text_open = !closing;
}

bool Stream::read(PcmChunk &chunk) {
    if (chunks_.empty()) return false;
    chunk = std::move(chunks_.front());
    chunks_.pop_front();
    progress_.unread -= chunk.n_frames;
    return true;
}

void Stream::cancel() {
    if (progress_.finished && chunks_.empty()) return;
    collected_ = {};
    chunks_.clear();
    progress_.unread = 0;
    progress_.finished = true;
    end(KZ_ENDED_CANCELLED);
    stop = true;
    readable.notify_all();
}

void Stream::fail(kz_status status, const std::string &text) {
    error_ = status;
    error_text_ = text;
    progress_.finished = true;
    end(KZ_ENDED_ERROR);
    stop = true;
    readable.notify_all();
}

void Stream::rethrow() const {
    if (error_ != KZ_OK) kz::fail(error_, "%s", error_text_.c_str());
}

void Stream::result(kz_result &r) const {
    const GeneratorTimes &generator = figures_.generator;
    const CodecStageTimes &codec_s = figures_.codec;
    const double first = progress_.first_chunk, last = figures_.last_chunk;
    r.ended = ended_;
    r.n_frames = progress_.generated;
    r.n_chunks = progress_.n_chunks;
    r.codes = codes_.data();
    r.ttfb_s = first < 0 ? -1 : first - opened_;
    r.wait_s = figures_.waited;
    r.work_s = last < 0 ? 0 : last - opened_ - figures_.waited_before_last;
    const double stages[KZ_N_STAGES] = {
        generator.prefill, generator.talker, generator.cp,     generator.sample, codec_s.quant,
        codec_s.preconv,   codec_s.pretr,    codec_s.upsample, codec_s.bigvgan,  figures_.decoder};
    std::copy(stages, stages + KZ_N_STAGES, r.stage_s);
}

// Notes when the stream begins and ends to wait for text.
void Stream::note_text_wait(double now) {
    double &since = figures_.waiting_since;
    const bool waits = awaits_text(progress_);
    if (waits && since < 0) since = now;
    if (waits || since < 0) return;
    figures_.waited += now - since;
    since = -1;
}

// After frame n - 1, text id n - 1 is fed; end-of-speech opens once all have been.
Turn Stream::begin_turn() {
    const auto index = static_cast<size_t>(progress_.generated);
    Turn turn{};
    turn.generation = &generation;
    turn.next_text = index > 0 && index <= text_.size() ? text_[index - 1] : request.pad_text_id;
    turn.n_text = request.n_text_tokens + static_cast<int>(text_.size());
    turn.eos_allowed = !progress_.text_open && index >= text_.size();
    progress_.generating = true;
    return turn;
}

void Stream::end_turn(Turn &turn) {
    progress_.generating = false;
    readable.notify_all();
    figures_.generator = generation.times();
    if (progress_.all_generated) return;  // cancelled meanwhile
    if (turn.status != KZ_OK) {
        fail(turn.status, turn.error);
        return;
    }
    switch (turn.outcome) {
        case Turn::Outcome::kFrame:
            codes_.insert(codes_.end(), turn.codes.begin(), turn.codes.end());
            progress_.generated++;
            if (progress_.generated == request.max_frames) end(KZ_ENDED_MAX_FRAMES);
            break;
        case Turn::Outcome::kEos:
            end(KZ_ENDED_EOS);
            break;
        case Turn::Outcome::kMaxFrames:
            end(KZ_ENDED_MAX_FRAMES);
            break;
        case Turn::Outcome::kRunaway:
            end(KZ_ENDED_RUNAWAY);
            break;
        case Turn::Outcome::kRepetition:
            end(KZ_ENDED_REPETITION);
            break;
        case Turn::Outcome::kPrompt:
        case Turn::Outcome::kStopped:
            break;
    }
    settle();
}

std::vector<int32_t> Stream::begin_decoding(PcmChunk &piece) {
    piece.first_frame = progress_.taken;
    piece.n_frames = progress_.begin_turn();
    const auto begin = codes_.begin() + static_cast<ptrdiff_t>(n_codebooks_) * piece.first_frame;
    return {begin, begin + static_cast<ptrdiff_t>(n_codebooks_) * piece.n_frames};
}

void Stream::end_decoding(const CodecStageTimes &stages, double seconds) {
    progress_.end_turn(now_s());
    figures_.decoder += seconds;
    if (request.profile) figures_.codec += stages;
    readable.notify_all();
}

void Stream::decoded(PcmChunk piece) {
    if (progress_.finished) return;
    guard_silence(piece);
    collected_.n_frames += piece.n_frames;
    if (collected_.pcm.empty()) {
        collected_.pcm = std::move(piece.pcm);
    } else {
        collected_.pcm.insert(collected_.pcm.end(), piece.pcm.begin(), piece.pcm.end());
    }
    settle();
}

void Stream::end(kz_ended how) {
    ended_ = how;
    progress_.all_generated = true;
    note_text_wait(now_s());
}

// Hands over what is a chunk, and ends the stream once its last frame has been decoded.
void Stream::settle() {
    if (progress_.finished || progress_.decoding) return;
    if (chunk_collected(progress_)) hand_over();
    progress_.finished = progress_.all_generated && progress_.taken == progress_.generated;
    if (progress_.finished) readable.notify_all();
}

// What was collected becomes a chunk for the reader, if there is anything to hear.
void Stream::hand_over() {
    PcmChunk chunk = std::exchange(collected_, {});
    chunk.first_frame = progress_.delivered;
    chunk.index = progress_.n_chunks;
    const double now = now_s();
    progress_.deliver(!chunk.pcm.empty(), now);
    if (chunk.pcm.empty()) return;
    figures_.last_chunk = now;
    figures_.waited_before_last = figures_.waited;
    chunk.t_s = now - opened_;
    chunks_.push_back(std::move(chunk));
    readable.notify_all();
}

// Ends the stream after the frame that completes a silence of guard.silence_frames, wherever the
// turns begin; what was generated beyond it is dropped.
void Stream::guard_silence(PcmChunk &piece) {
    constexpr float kSilent = 0.00316f;  // -50 dB
    const int most = request.guard.silence_frames;
    if (most == 0) return;
    const auto width = static_cast<ptrdiff_t>(samples_per_frame_);
    const int skipped = piece.n_frames - static_cast<int>(std::ssize(piece.pcm) / width);
    for (int i = skipped; i < piece.n_frames; i++) {
        const auto begin = piece.pcm.begin() + width * (i - skipped);
        const bool silent =
            std::all_of(begin, begin + width, [](float x) { return std::abs(x) < kSilent; });
        silent_frames_ = silent ? silent_frames_ + 1 : 0;
        if (silent_frames_ < most) continue;
        piece.n_frames = i + 1;
        piece.pcm.erase(begin + width, piece.pcm.end());
        progress_.generated = progress_.taken = piece.first_frame + piece.n_frames;
        codes_.resize(static_cast<size_t>(progress_.generated) * n_codebooks_);
        end(KZ_ENDED_SILENCE);
        stop = true;  // a frame in the making is not wanted any more
        return;
    }
}

}  // namespace kz
