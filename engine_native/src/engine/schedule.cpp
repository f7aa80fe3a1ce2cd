#include "engine/schedule.h"

#include <algorithm>

#include "model/codec/decoder.h"

namespace kz {

namespace {

constexpr int kMaxTurn = Decoder::kMaxFrames;
constexpr int kMaxQueuedFrames = 64;   // generated, not yet decoded
constexpr int kMaxUnreadFrames = 256;  // decoded, not yet read: 20 s
constexpr size_t kMaxStreams = 16;     // in a turn of the generator
constexpr double kPatience = 0.5;      // s between turns that only collect frames

int waiting(const Progress &p) {
    return p.generated - p.taken;
}

// Frames for which the next turn waits, unless the listener would fall silent.
int full_turn(const Progress &p) {
    if (p.chunk > 0) return std::min(kMaxTurn, p.delivered + p.chunk - p.taken);
    if (p.chunk == 0) return kMaxTurn;
    return p.n_chunks == 0 ? 1 : std::clamp(2 * p.last_turn, 1, kMaxTurn);
}

// Seconds of audio in so many first frames.
double audible(const Progress &p, int frames) {
    return std::max(0, frames - p.skip_frames) * p.frame_s;
}

// Whether a chunk ends behind so many frames.
bool chunk_ends(const Progress &p, int frames) {
    return p.chunk < 0 || (p.chunk > 0 && frames == p.delivered + p.chunk) ||
           (p.all_generated && frames == p.generated);
}

// The turn at work, or the next one, is the last of a chunk.
bool completes_chunk(const Progress &p) {
    return chunk_ends(p, p.decoding ? p.taken : p.taken + next_turn(p));
}

// Room for another frame.
bool wants_frame(const Progress &p) {
    return !p.all_generated && (p.chunk == 0 || waiting(p) < kMaxQueuedFrames);
}

}  // namespace

int Progress::begin_turn() {
    last_turn = next_turn(*this);
    taken += last_turn;
    decoding = true;
    return last_turn;
}

void Progress::end_turn(double now) {
    decoding = false;
    served = now;
}

void Progress::deliver(bool audible, double now) {
    if (audible) {
        if (first_chunk < 0) first_chunk = now;
        unread += taken - delivered;
        n_chunks++;
    }
    delivered = taken;
}

bool reader_full(const Progress &p) {
    return p.unread >= kMaxUnreadFrames;
}

bool awaits_text(const Progress &p) {
    return wants_frame(p) && p.text_open && p.generated > p.text_known;
}

int next_turn(const Progress &p) {
    return std::min(waiting(p), full_turn(p));
}

double due_at(const Progress &p) {
    if (p.finished || p.decoding || waiting(p) == 0 || reader_full(p)) return kNever;
    if (p.all_generated) return -kNever;
    if (p.chunk == 0 && !p.silence_guarded) return kNever;
    if (waiting(p) >= full_turn(p)) return -kNever;
    if (p.chunk >= 0) return kNever;
    // auto: when half the audio in hand lasts for less than one frame more than wait.
    return p.first_chunk + audible(p, p.taken) - 2 * (waiting(p) + 1) * p.frame_s;
}

double dry_at(const Progress &p) {
    if (p.n_chunks > 0) return p.first_chunk + audible(p, p.delivered);
    return completes_chunk(p) ? -kNever : p.served + kPatience;
}

bool chunk_collected(const Progress &p) {
    return !p.decoding && p.taken > p.delivered && chunk_ends(p, p.taken);
}

bool first_chunk_due(const Progress &p, double now) {
    return p.n_chunks == 0 && (p.decoding || due_at(p) <= now) && completes_chunk(p);
}

std::vector<size_t> next_to_generate(Streams streams, size_t rotation, int n_threads, double now) {
    std::vector<size_t> batch;
    for (size_t i = 0; i < streams.size() && batch.size() < kMaxStreams; i++) {
        const size_t at = (rotation + i) % streams.size();
        if (wants_frame(*streams[at]) && !awaits_text(*streams[at])) batch.push_back(at);
    }
    if (n_threads > 1 && batch.size() == 1 && first_chunk_due(*streams[batch[0]], now)) return {};
    return batch;
}

std::optional<size_t> next_to_decode(Streams streams, size_t rotation, double now) {
    std::optional<size_t> best;
    double first = kNever;
    for (size_t i = 0; i < streams.size(); i++) {
        const size_t at = (rotation + i) % streams.size();
        if (due_at(*streams[at]) > now) continue;
        const double dry = std::max(dry_at(*streams[at]), now);
        if (best && dry >= first) continue;
        best = at;
        first = dry;
    }
    return best;
}

double next_due(Streams streams) {
    double first = kNever;
    for (const Progress *p : streams) first = std::min(first, due_at(*p));
    return first;
}

bool decoder_behind(Streams streams) {
    return std::any_of(streams.begin(), streams.end(), [](const Progress *p) {
        return !p->finished && !reader_full(*p) && p->chunk != 0 && p->last_turn > 0 &&
               waiting(*p) >= p->last_turn;
    });
}

bool helpers_decode(const HelpersView &v) {
    if (!v.decoding || !v.decoder_shares) return false;
    if (!v.generating) return true;
    if (v.generator_brings_threads) return false;
    return v.decoder_behind || !v.generator_shares;
}

}  // namespace kz
