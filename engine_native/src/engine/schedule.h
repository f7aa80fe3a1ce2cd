// Who is next: rules over how far the streams are.  Pure functions; a moment is an argument, in
// seconds of whatever clock the stream's own moments are of.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace kz {

// How far a stream is: all that the schedule looks at.
struct Progress {
    // Of the request.
    int chunk = -1;  // frames a chunk; 0: all in one, at the end; -1: auto
    int skip_frames = 0;
    bool silence_guarded = false;
    double frame_s = 0;

    int text_known = 0;  // ids to feed beside frames
    bool text_open = false;
    // Frames: generated >= taken >= delivered.
    int generated = 0;
    int taken = 0;      // handed to the decoder
    int delivered = 0;  // of chunks; those beyond are collected for the next
    int unread = 0;     // of chunks that nobody has read yet
    int last_turn = 0;  // of the decoder's last turn; 0: none yet
    int n_chunks = 0;   // with audio
    bool generating = false, decoding = false;  // a thread is at work on it
    bool all_generated = false;                 // no more frames will come
    bool finished = false;                      // no more chunks will come
    double served = 0;                          // when the decoder's last turn ended, or opened
    double first_chunk = -1;                    // when it was ready; -1: not yet

    // The decoder's next turn begins, and ends; how many frames it has.
    int begin_turn();
    void end_turn(double now);
    // What was collected is a chunk; audible: not only frames that the request skips.
    void deliver(bool audible, double now);
};

using Streams = std::span<const Progress *const>;

constexpr double kNever = std::numeric_limits<double>::infinity();

// ---- of one stream

// Its reader has so much audio before it that no more is made for now.
bool reader_full(const Progress &p);

// Its next frame needs text that has not come: text is never padded before its end.
bool awaits_text(const Progress &p);

// Frames of the decoder's next turn: never beyond the chunk, and so few that nobody waits long.
int next_turn(const Progress &p);

// When that turn falls due if nothing changes meanwhile; kNever: only more frames or the reader
// can bring it about.  With chunk 0 decoding begins after the last frame, which is the most
// efficient order of work; a silence guard must hear the frames while they come.
double due_at(const Progress &p);

// When the listener falls silent without the next turn: long ago for the last turn of the first
// chunk.  Turns that only collect frames for it are patient.
double dry_at(const Progress &p);

// What was decoded and not delivered is a chunk: as large as asked for, or the last.
bool chunk_collected(const Progress &p);

// The first chunk is being decoded, or could be: its last turn, if it takes several.
bool first_chunk_due(const Progress &p, double now);

// ---- of all; `rotation`: where the search begins, so that equals take turns

// Streams whose next frames go through one pass.  Nobody when a listener waits for the first sound
// of the only stream, and there are two threads: both decode it before the next frame is generated.
std::vector<size_t> next_to_generate(Streams streams, size_t rotation, int n_threads, double now);

// Who has the decoder's next turn: whose listener falls silent first; those who are silent already
// take turns.
std::optional<size_t> next_to_decode(Streams streams, size_t rotation, double now);

// The first moment of due_at.
double next_due(Streams streams);

// Frames of some stream come faster than they are decoded: as many wait as its last turn had.  A
// stream whose reader is slow waits for that reader, not for the decoder.
bool decoder_behind(Streams streams);

struct HelpersView {
    bool generating, decoding;      // a thread is at work
    bool decoder_behind;            // frames come faster than they are decoded
    bool generator_shares;          // some of its products are shared with helpers (Team)
    bool decoder_shares;            // as are the decoder's
    bool generator_brings_threads;  // ggml graphs on the processor: threads of their own, all cores
};

// Whether threads beyond the generator's and the decoder's own help the decoder; the generator
// otherwise.  The split follows from what waits: how long a frame takes either side differs by
// model, weight type, device, machine and number of streams.
bool helpers_decode(const HelpersView &v);

}  // namespace kz
