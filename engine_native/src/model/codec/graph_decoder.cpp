#include "model/codec/graph_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/codec/graph_build.h"
#include "runtime/status.h"

namespace kz {

// A stream's carries while the decoder is at work on another stream.
struct GraphDecoder::Memory {
    int position = 0;   // frames decoded so far
    bool lost = false;  // a decoding ended in between
    const GraphDecoder *owner = nullptr;
    std::unique_ptr<PlacedTensors> tensors;  // none until the first change of streams
    ggml_tensor *saved = nullptr;
};

struct GraphDecoder::State final : DecoderState {
    void reset() override { memory = std::make_shared<Memory>(); }
    std::shared_ptr<Memory> memory = std::make_shared<Memory>();
};

struct GraphDecoder::Chunk {
    Chunk(size_t nodes, int n) : graph(nodes), frames(n) {}
    PlacedGraph graph;
    GraphTensors tensors{};
    const int frames;
};

GraphDecoder::GraphDecoder(const GraphWeights &weights, int n_threads)
    : w_(weights),
      backends_(weights.device, n_threads),
      work_tensors_(std::make_unique<PlacedTensors>(1)),
      work_(work_tensors_->add("carries", GGML_TYPE_F32,
                               {static_cast<int64_t>(weights.state_floats)})) {
    w_.place(*work_tensors_, work_, false);
}

GraphDecoder::~GraphDecoder() = default;

std::unique_ptr<DecoderState> GraphDecoder::make_state() {
    return std::make_unique<State>();
}

void GraphDecoder::set_probe(Probe probe) {
    if (!!probe != !!probe_) chunks_.clear();  // what a probe looks at, graphs keep
    probe_ = std::move(probe);
}

void GraphDecoder::save(Memory &memory) {
    if (!memory.tensors) {
        auto tensors = std::make_unique<PlacedTensors>(1);
        memory.saved = tensors->add("saved carries", GGML_TYPE_F32, {work_->ne[0]});
        tensors->place(w_.device, {}, false);
        memory.tensors = std::move(tensors);
    }
    copy_values(work_, memory.saved);
}

void GraphDecoder::enter(State &state) {
    if (state.memory->owner && state.memory->owner != this)
        fail(KZ_ERR_INTERNAL, "a decoder state belongs to another decoder");
    const std::shared_ptr<Memory> current = current_.lock();
    if (current == state.memory) return;
    // Should this fail, the other stream stays.
    if (current && !current->lost) save(*current);
    current_.reset();  // should what follows fail, nobody's carries are there
    if (state.memory->position == 0) {
        work_tensors_->clear();
    } else {
        copy_values(state.memory->saved, work_);
    }
    state.memory->owner = this;
    current_ = state.memory;
}

GraphDecoder::Chunk &GraphDecoder::chunk(int frames) {
    std::unique_ptr<Chunk> &kept = chunks_[frames];
    if (!kept) {
        auto made = std::make_unique<Chunk>(graph_nodes(w_, frames), frames);
        made->tensors = build_graph(made->graph, w_, work_, frames, !!probe_);
        made->graph.allocate(backends_);
        kept = std::move(made);
    }
    return *kept;
}

bool GraphDecoder::run(Chunk &chunk, Memory &memory, const int32_t *codes, float *pcm) {
    const GraphTensors &t = chunk.tensors;
    const int n = chunk.frames, before = w_.config.window - 1, keys = before + n;
    first_.resize(static_cast<size_t>(n) * static_cast<size_t>(w_.config.codebook_dim));
    rest_.resize(first_.size());
    w_.codebooks.look_up(*w_.kernels, codes, n, first_.data(), rest_.data(), w_.config.codebook_dim,
                         entry_);
    // Frame i sees the `before` keys in front of it and its own; none from before the first frame.
    mask_.assign(static_cast<size_t>(n) * static_cast<size_t>(keys), -INFINITY);
    positions_.resize(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
        positions_[static_cast<size_t>(i)] = memory.position + i;
        const int first = std::max(i, before - memory.position);
        float *row = mask_.data() + static_cast<ptrdiff_t>(i) * keys;
        std::fill(row + first, row + i + before + 1, 0.0f);
    }
    upload(t.first, first_.data());
    upload(t.rest, rest_.data());
    upload(t.positions, positions_.data());
    upload(t.mask, mask_.data());
    if (!chunk.graph.compute()) return false;
    memory.position += n;
    download(t.pcm, pcm);
    for (const auto &[name, x] : t.stages) {
        values_.resize(static_cast<size_t>(ggml_nelements(x)));
        download(x, values_.data());
        probe_(name, values_.data(), static_cast<int>(x->ne[1]), static_cast<int>(x->ne[0]));
    }
    const int samples = n * w_.config.samples_per_frame;
    finish_samples(pcm, samples, backends_.name());
    if (probe_) probe_("pcm", pcm, samples, 1);
    return true;
}

bool GraphDecoder::decode(DecoderState &decoder_state, const int32_t *codes, int n_frames,
                          float *pcm, CodecStageTimes *) {
    auto &state = dynamic_cast<State &>(decoder_state);
    if (state.memory->lost)
        fail(KZ_ERR_COMPUTE, "a decoder state was lost as a decoding on %s ended, expected a reset",
             backends_.name());
    enter(state);
    state.memory->lost = true;  // until all is decoded
    backends_.set_stop(stop_);
    while (n_frames > 0) {
        if (stopped()) return false;
        const auto most = static_cast<unsigned>(std::min(n_frames, longest_chunk()));
        const auto n = static_cast<int>(std::bit_floor(most));
        if (!run(chunk(n), *state.memory, codes, pcm)) return false;
        codes += static_cast<ptrdiff_t>(n) * w_.config.n_codebooks;
        pcm += static_cast<ptrdiff_t>(n) * w_.config.samples_per_frame;
        n_frames -= n;
    }
    state.memory->lost = false;
    return true;
}

Placement GraphDecoder::placement(int frames) {
    return chunk(std::min(frames, longest_chunk())).graph.placement();
}

}  // namespace kz
