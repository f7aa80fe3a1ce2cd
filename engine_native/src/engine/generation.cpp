#include "engine/generation.h"

#include <algorithm>
#include <cstring>

#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

namespace {

void check_range(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        fail(KZ_ERR_ARGUMENT, "%s is %lld, expected %lld..%lld", name,
             static_cast<long long>(value), static_cast<long long>(low),
             static_cast<long long>(high));
    }
}

void check_guard(const kz_guard &guard) {
    for (const float value : {guard.frames_per_token, guard.eos_boost}) {
        if (!(value >= 0.0f && value <= 1000.0f))
            fail(KZ_ERR_ARGUMENT, "a rate of the guard is %g, expected 0..1000",
                 static_cast<double>(value));
    }
    constexpr int32_t kMost = 1 << 30;
    check_range("the guard's min_frames", guard.min_frames, 0, kMost);
    check_range("the guard's repeat_frames", guard.repeat_frames, 0, kMost);
    check_range("the guard's silence_frames", guard.silence_frames, 0, kMost);
}

}  // namespace

void check_text_ids(const Model &model, const int32_t *ids, int32_t n, const char *what) {
    for (int32_t i = 0; i < n; i++)
        check_range(what, ids[i], 0, model.talker.config.text_vocab - 1);
}

Request::Request(const Model &model, const kz_stream_params &p) {
    const TalkerConfig &c = model.talker.config;
    const kz_prompt &prompt = p.prompt;
    if (!prompt.text_ids || !prompt.codec_ids || (prompt.n_trailing > 0 && !prompt.trailing_ids)) {
        fail(KZ_ERR_ARGUMENT, "the prompt has no ids");
    }
    check_range("n_positions", prompt.n_positions, 1, c.max_positions);
    check_range("n_trailing", prompt.n_trailing, 0, c.max_positions);
    check_range("max_frames", p.max_frames, 1, c.max_positions - prompt.n_positions);
    check_range("min_frames", p.min_frames, 0, p.max_frames);
    check_range("chunk", p.chunk, -1, c.max_positions);
    check_range("skip_frames", p.skip_frames, 0, c.max_positions);
    check_range("pad_text_id", prompt.pad_text_id, 0, c.text_vocab - 1);
    for (int32_t i = 0; i < prompt.n_positions; i++) {
        check_range("a text id of the prompt", prompt.text_ids[i], -1, c.text_vocab - 1);
        check_range("a codec id of the prompt", prompt.codec_ids[i], -1, c.codec_vocab - 1);
    }
    check_text_ids(model, prompt.trailing_ids, prompt.n_trailing, "a trailing text id");
    check_sampling(p.talker, "talker");
    check_sampling(p.cp, "code predictor");
    check_guard(p.guard);
    check_range("n_text_tokens", prompt.n_text_tokens, 0, prompt.n_positions);
    check_range("n_prefix", prompt.n_prefix, 0, prompt.n_positions - 1);

    text_ids.assign(prompt.text_ids, prompt.text_ids + prompt.n_positions);
    codec_ids.assign(prompt.codec_ids, prompt.codec_ids + prompt.n_positions);
    if (prompt.n_trailing > 0)
        trailing_ids.assign(prompt.trailing_ids, prompt.trailing_ids + prompt.n_trailing);
    pad_text_id = prompt.pad_text_id;
    text_open = prompt.text_open != 0;
    talker = p.talker;
    cp = p.cp;
    cp.repetition_penalty = 1.0f;
    guard = p.guard;
    n_text_tokens = prompt.n_text_tokens;
    n_prefix = prompt.n_prefix;
    seed = p.seed;
    max_frames = p.max_frames;
    min_frames = p.min_frames;
    chunk = p.chunk;
    skip_frames = p.skip_frames;
    cp_recompute = p.cp_recompute != 0;
    ignore_eos = p.ignore_eos != 0;
    profile = p.profile != 0;
}

Generation::Generation(const Model &model, const Request &request)
    : model_(model),
      request_(request),
      state_(model.talker),
      talker_sampler_(request.talker, "talker"),
      cp_sampler_(request.cp, "code predictor"),
      random_(request.seed),
      suppressed_(static_cast<size_t>(model.talker.config.codec_vocab)),
      hidden_(static_cast<size_t>(model.talker.config.block.hidden)),
      logits_(static_cast<size_t>(model.talker.config.codec_vocab)),
      embed_(hidden_.size()) {
    // Ids beyond the codebook are control ids: only end-of-speech may be drawn, choose_first()
    // decides when.
    for (size_t i = static_cast<size_t>(model.codec.config.codebook_size); i < suppressed_.size();
         i++)
        suppressed_[i] = 1;
}

void Generation::begin_prompt(Generator &g) {
    const size_t width = hidden_.size();
    prompt_embeds_.resize(static_cast<size_t>(positions()) * width);
    for (size_t i = 0; i < request_.text_ids.size(); i++)
        g.talker.embed(request_.text_ids[i], request_.codec_ids[i], &prompt_embeds_[i * width]);
    if (request_.n_prefix == 0 || !g.talker.lm().exact_grouping()) return;
    const auto n = static_cast<ptrdiff_t>(request_.n_prefix);
    prefix_.assign(request_.text_ids.begin(), request_.text_ids.begin() + n);
    prefix_.insert(prefix_.end(), request_.codec_ids.begin(), request_.codec_ids.begin() + n);
    if (!g.prefixes.restore(prefix_, state_.kv)) return;
    fed_ = request_.n_prefix;
    prefix_.clear();
}

// What this stream feeds to the talker now: a piece of the prompt, or the last frame.
LmSequence Generation::talker_inputs(Generator &g, const Turn &turn, int most_rows) {
    if (in_prompt()) {
        if (fed_ == 0) begin_prompt(g);
        const int n = std::min(most_rows, positions() - fed_);
        const bool last = fed_ + n == positions();
        return {&state_.kv, prompt_embeds_.data() + static_cast<size_t>(fed_) * hidden_.size(), n,
                last ? hidden_.data() : nullptr, last ? logits_.data() : nullptr};
    }
    g.talker.embed(turn.next_text, last_[0], embed_.data());
    g.cp.add_embeddings(last_.data() + 1, embed_.data());
    return {&state_.kv, embed_.data(), 1, hidden_.data(), logits_.data()};
}

void Generation::talker_done(Generator &g, int rows, double seconds) {
    if (!in_prompt()) {
        times_.talker += seconds;
        return;
    }
    times_.prefill += seconds;
    fed_ += rows;
    if (!prefix_.empty() && fed_ >= request_.n_prefix) {
        g.prefixes.keep(prefix_, state_.kv);
        prefix_.clear();
    }
    if (!in_prompt() && !keep_prompt_) prompt_embeds_ = {};
}

int Generation::guard_limit(int n_text) const {
    const double limit = static_cast<double>(request_.guard.frames_per_token) * n_text;
    return std::max(request_.guard.min_frames,
                    static_cast<int>(std::min<double>(limit, request_.max_frames)));
}

void Generation::note_repetition() {
    const size_t n = history_.size();
    for (size_t period = 1; period <= repeated_.size(); period++) {
        int &run = repeated_[period - 1];
        run = n > period && history_[n - 1] == history_[n - 1 - period] ? run + 1 : 0;
    }
}

bool Generation::repeating() const {
    return request_.guard.repeat_frames > 0 &&
           *std::max_element(repeated_.begin(), repeated_.end()) >= request_.guard.repeat_frames;
}

// Whether the stream is at its end before anything is computed; sets the outcome.
bool Generation::ended(Turn &turn) const {
    if (frames() >= request_.max_frames) {
        turn.outcome = Turn::Outcome::kMaxFrames;
    } else if (limited(turn) && frames() >= guard_limit(turn.n_text)) {
        turn.outcome = Turn::Outcome::kRunaway;
    } else if (repeating()) {
        turn.outcome = Turn::Outcome::kRepetition;
    } else {
        return false;
    }
    return true;
}

// Codebook 0, or end-of-speech.
void Generation::choose_first(Generator &g, Turn &turn) {
    const ScopedTimer timer(times_.sample);
    const TalkerConfig &c = model_.talker.config;
    const auto eos = static_cast<size_t>(c.codec_eos);
    suppressed_[eos] =
        !(turn.eos_allowed && frames() >= request_.min_frames && !request_.ignore_eos);
    const int half = limited(turn) ? guard_limit(turn.n_text) / 2 : 0;
    if (limited(turn) && frames() > half)
        logits_[eos] += request_.guard.eos_boost * static_cast<float>(frames() - half);
    turn.codes.resize(static_cast<size_t>(model_.n_codebooks()));
    turn.codes[0] = talker_sampler_.draw(logits_.data(), c.codec_vocab, suppressed_.data(),
                                         history_.data(), frames(), random_);
    if (forced_) turn.codes[0] = forced_[0];
    turn.outcome = turn.codes[0] == c.codec_eos ? Turn::Outcome::kEos : Turn::Outcome::kFrame;
    if (turn.outcome == Turn::Outcome::kFrame) g.talker.embed(-1, turn.codes[0], embed_.data());
}

int Generation::choose(int step, const float *logits) {
    const ScopedTimer timer(times_.sample);
    const int size = model_.cp.config.codebook_size;
    if (cp_logits_)
        std::memcpy(cp_logits_ + static_cast<ptrdiff_t>(step) * size, logits,
                    sizeof(float) * static_cast<size_t>(size));
    const int code = cp_sampler_.draw(logits, size, nullptr, nullptr, 0, random_);
    return forced_ ? static_cast<int>(forced_[step + 1]) : code;
}

void Generation::frame_done(const Turn &turn) {
    history_.push_back(turn.codes[0]);
    note_repetition();
    last_ = turn.codes;
}

namespace {

// Runs f for one stream; a failure is that stream's alone.
template <typename F>
void guarded_turn(Turn &turn, F f) {
    const kz_status status = guarded(f);
    if (status == KZ_OK) return;
    turn.status = status;
    turn.error = last_error();
}

// Computes `items`, one of each turn, in one pass where the model shares passes; else each alone,
// so that a failure is that of one stream.  False when *stop was seen.
template <typename T, typename F>
bool pass(const Lm &lm, std::span<T> items, std::span<Turn *const> turns, F f) {
    if (lm.shares_passes()) return f(items);
    bool done = true;
    for (size_t i = 0; i < items.size(); i++)
        guarded_turn(*turns[i], [&] { done = f(items.subspan(i, 1)) && done; });
    return done;
}

}  // namespace

void advance(Generator &g, std::span<Turn> turns) {
    // A stop is looked at between pieces of a prompt.  Beside others they are small, so that nobody
    // waits long for them.
    constexpr int kPiece = 64, kPieceBesideOthers = 8;
    const bool alone = turns.size() == 1 || !g.talker.lm().exact_grouping();
    const int most_rows = alone ? kPiece : kPieceBesideOthers;
    std::vector<Turn *> live;
    std::vector<LmSequence> sequences;
    live.reserve(turns.size());
    sequences.reserve(turns.size());
    for (Turn &turn : turns) {
        if (turn.generation->ended(turn)) continue;
        guarded_turn(turn, [&] {
            const LmSequence s = turn.generation->talker_inputs(g, turn, most_rows);
            g.talker.lm().reserve(*s.cache, s.cache->n_past + s.n);
            sequences.push_back(s);
            live.push_back(&turn);
        });
    }
    if (live.empty()) return;
    double start = now_s();
    if (!pass(g.talker.lm(), std::span(sequences), live,
              [&](std::span<LmSequence> s) { return g.talker.forward(s); }))
        return;
    const double talker_s = now_s() - start;

    std::vector<Turn *> framed;
    std::vector<CpFrame> frames;
    double sampled = 0;
    for (size_t i = 0; i < live.size(); i++) {
        Turn &turn = *live[i];
        if (turn.status != KZ_OK) continue;
        Generation &generation = *turn.generation;
        generation.talker_done(g, sequences[i].n, talker_s);
        turn.outcome = Turn::Outcome::kPrompt;
        if (generation.in_prompt()) continue;
        guarded_turn(turn, [&] { generation.choose_first(g, turn); });
        if (turn.status != KZ_OK || turn.outcome != Turn::Outcome::kFrame) continue;
        const auto choose = [&turn, &generation, &sampled](int step, const float *logits) {
            const ScopedTimer timer(sampled);
            int code = 0;
            guarded_turn(turn, [&] { code = generation.choose(step, logits); });
            return code;
        };
        frames.push_back({generation.hidden_.data(), generation.embed_.data(), choose,
                          turn.codes.data() + 1, generation.request_.cp_recompute});
        framed.push_back(&turn);
    }
    if (frames.empty()) return;
    start = now_s();
    const bool done = pass(g.cp.lm(), std::span(frames), framed,
                           [&](std::span<CpFrame> f) { return g.cp.run(f); });
    const double cp_s = now_s() - start - sampled;
    for (Turn *turn : framed) {
        if (!done) {
            turn->outcome = Turn::Outcome::kStopped;
        } else if (turn->status == KZ_OK) {
            turn->generation->times_.cp += cp_s;
            turn->generation->frame_done(*turn);
        }
    }
}

}  // namespace kz
