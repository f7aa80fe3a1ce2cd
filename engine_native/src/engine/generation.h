// One utterance in the generator: prompt, talker, code predictor, sampling, frame by frame.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_cache.h"
#include "model/lm/code_predictor.h"
#include "model/lm/sampler.h"
#include "model/lm/talker.h"
#include "model/model.h"

namespace kz {

// Seconds in which a stream's passes ran, those it shared with other streams included.
struct GeneratorTimes {
    double prefill = 0, talker = 0, cp = 0, sample = 0;
};

// The scratch that a generating thread needs; serves any number of utterances.
// n_threads: of ggml, for weights that our kernels do not multiply.
struct Generator {
    Generator(const Model &model, Team &team, int n_threads)
        : talker(model.talker, team, n_threads), cp(model.cp, team, n_threads) {}
    void set_stop(const std::atomic<bool> *stop) {
        talker.lm().set_stop(stop);
        cp.lm().set_stop(stop);
    }
    Talker talker;
    CodePredictor cp;
    PrefixCache prefixes;
};

// A request, copied and checked.
struct Request {
    // Throws KZ_ERR_ARGUMENT naming the parameter.
    Request(const Model &model, const kz_stream_params &params);

    std::vector<int32_t> text_ids, codec_ids;  // of the prompt, -1: absent
    std::vector<int32_t> trailing_ids;
    int32_t pad_text_id;
    bool text_open;
    kz_sampling talker, cp;
    kz_guard guard;
    int n_text_tokens, n_prefix;
    uint64_t seed;
    int max_frames, min_frames, chunk, skip_frames;
    bool cp_recompute, ignore_eos, profile;
};

void check_text_ids(const Model &model, const int32_t *ids, int32_t n, const char *what);

class Generation;

// One stream's part of a turn of the generator.
struct Turn {
    enum class Outcome { kFrame, kPrompt, kEos, kMaxFrames, kRunaway, kRepetition, kStopped };

    Generation *generation;
    int32_t next_text;  // the text id fed beside the last frame
    int n_text;         // text tokens known by now
    bool eos_allowed;   // whether end-of-speech may be drawn now

    std::vector<int32_t> codes;  // of the frame [n_codebooks], with kFrame
    // kPrompt: a piece of the prompt is done, no frame yet.  kStopped: *stop was seen.
    Outcome outcome = Outcome::kStopped;
    kz_status status = KZ_OK;  // a failure of this stream alone
    std::string error;
};

// Advances every stream of `turns` by one frame, or by a piece of its prompt, in shared passes.  A
// stream's codes do not depend on the others.  Throws what concerns all of them.
void advance(Generator &generator, std::span<Turn> turns);

class Generation {
  public:
    Generation(const Model &model, const Request &request);

    int frames() const { return static_cast<int>(history_.size()); }
    const GeneratorTimes &times() const { return times_; }

    // For checks against the reference: the values behind the last frame, and another choice of
    // codes to feed back.
    const FloatBuffer &hidden() const { return hidden_; }
    const FloatBuffer &logits() const { return logits_; }
    const FloatBuffer &prompt_embeds() const { return prompt_embeds_; }
    void keep_prompt_embeds() { keep_prompt_ = true; }
    void keep_cp_logits(float *out) { cp_logits_ = out; }  // [n_steps][codebook_size]
    void force(const int32_t *codes) { forced_ = codes; }

  private:
    friend void advance(Generator &generator, std::span<Turn> turns);
    static constexpr int kMaxPeriod = 8;

    // The steps of a turn.
    bool ended(Turn &turn) const;
    LmSequence talker_inputs(Generator &generator, const Turn &turn, int most_rows);
    void talker_done(Generator &generator, int rows, double seconds);
    void choose_first(Generator &generator, Turn &turn);
    int choose(int step, const float *logits);
    void frame_done(const Turn &turn);

    void begin_prompt(Generator &generator);
    int positions() const { return static_cast<int>(request_.text_ids.size()); }
    bool in_prompt() const { return fed_ < positions(); }
    int guard_limit(int n_text) const;
    bool limited(const Turn &turn) const {
        return request_.guard.frames_per_token > 0 && turn.eos_allowed && !request_.ignore_eos;
    }
    bool repeating() const;
    void note_repetition();

    const Model &model_;
    const Request &request_;
    TalkerState state_;
    Sampler talker_sampler_, cp_sampler_;
    Random random_;
    std::vector<uint8_t> suppressed_;  // [codec_vocab]
    std::vector<int32_t> history_;     // codebook 0 so far
    std::vector<int32_t> last_;        // codes of the last frame, not yet fed
    FloatBuffer hidden_, logits_, embed_;
    FloatBuffer prompt_embeds_;               // [positions][hidden] while the prompt is being fed
    PrefixCache::Key prefix_;                 // to keep once it has been fed; else empty
    int fed_ = 0;                             // positions of the prompt
    std::array<int, kMaxPeriod> repeated_{};  // frames for which the codes had period 1, 2, ...
    GeneratorTimes times_;
    bool keep_prompt_ = false;
    float *cp_logits_ = nullptr;
    const int32_t *forced_ = nullptr;
};

}  // namespace kz
