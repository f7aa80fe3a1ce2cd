#include "model/codec_graph.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/status.h"

namespace kz {

// A stream's carries while the decoder is at work on another stream.
struct CodecGraphDecoder::Memory {
    int position = 0;  // frames decoded so far
    const CodecGraphDecoder *owner = nullptr;
    std::unique_ptr<PlacedTensors> tensors;  // none until the first change of streams
    ggml_tensor *saved = nullptr;
};

struct CodecGraphDecoder::State final : DecoderState {
    void reset() override { memory = std::make_shared<Memory>(); }
    std::shared_ptr<Memory> memory = std::make_shared<Memory>();
};

struct CodecGraphDecoder::Chunk {
    Chunk(size_t nodes, int n) : graph(nodes), frames(n) {}
    PlacedGraph graph;
    CodecGraphTensors tensors{};
    const int frames;
};

CodecGraphDecoder::CodecGraphDecoder(const CodecGraphWeights &weights, int n_threads)
    : w_(weights),
      backends_(weights.device, n_threads),
      work_tensors_(std::make_unique<PlacedTensors>(1)),
      work_(work_tensors_->add("carries", GGML_TYPE_F32,
                               {static_cast<int64_t>(weights.state_floats)})) {
    PlacedGraph largest(codec_graph_nodes(w_, longest_chunk()));
    build_codec_graph(largest, w_, work_, longest_chunk(), false);
    work_tensors_->place(w_.device, largest.graph(), false);
}

CodecGraphDecoder::~CodecGraphDecoder() = default;

std::unique_ptr<DecoderState> CodecGraphDecoder::make_state() {
    return std::make_unique<State>();
}

void CodecGraphDecoder::set_probe(Probe probe) {
    if (!!probe != !!probe_) chunks_.clear();  // what a probe looks at, graphs keep
    probe_ = std::move(probe);
}

void CodecGraphDecoder::save(Memory &memory) {
    if (!memory.tensors) {
        auto tensors = std::make_unique<PlacedTensors>(1);
        memory.saved = tensors->add("saved carries", GGML_TYPE_F32, {work_->ne[0]});
        const PlacedGraph none(1);
        tensors->place(w_.device, none.graph(), false);
        memory.tensors = std::move(tensors);
    }
    ggml_backend_tensor_copy(work_, memory.saved);
}

void CodecGraphDecoder::enter(State &state) {
    if (state.memory->owner && state.memory->owner != this)
        fail(KZ_ERR_INTERNAL, "a decoder state belongs to another decoder");
    const std::shared_ptr<Memory> current = current_.lock();
    if (current == state.memory) return;
    current_.reset();  // should what follows fail, nobody's carries are there
    if (current) save(*current);
    if (state.memory->position == 0) {
        work_tensors_->clear();
    } else {
        ggml_backend_tensor_copy(state.memory->saved, work_);
    }
    state.memory->owner = this;
    current_ = state.memory;
}

CodecGraphDecoder::Chunk &CodecGraphDecoder::chunk(int frames) {
    std::unique_ptr<Chunk> &kept = chunks_[frames];
    if (!kept) {
        auto made = std::make_unique<Chunk>(codec_graph_nodes(w_, frames), frames);
        made->tensors = build_codec_graph(made->graph, w_, work_, frames, !!probe_);
        made->graph.allocate(backends_);
        kept = std::move(made);
    }
    return *kept;
}

// Rows of codebook 0, and the sums of the others.
void CodecGraphDecoder::look_up(const int32_t *codes, int frames) {
    const CodecConfig &c = w_.config;
    const auto dim = static_cast<size_t>(c.codebook_dim);
    const Kernels &k = *w_.kernels;
    first_.resize(static_cast<size_t>(frames) * dim);
    rest_.assign(first_.size(), 0.0f);
    entry_.resize(dim);
    for (int i = 0; i < frames; i++, codes += c.n_codebooks) {
        const size_t at = static_cast<size_t>(i) * dim;
        k.widen(&first_[at], w_.first_codebook.data(static_cast<size_t>(codes[0]) * dim),
                w_.first_codebook.type(), c.codebook_dim);
        for (int q = 1; q < c.n_codebooks; q++) {
            const size_t index = static_cast<size_t>(q - 1) * c.codebook_size + codes[q];
            k.widen(entry_.data(), w_.rest_codebooks.data(index * dim), w_.rest_codebooks.type(),
                    c.codebook_dim);
            k.axpy(&rest_[at], entry_.data(), 1.0f, c.codebook_dim);
        }
    }
}

void CodecGraphDecoder::run(Chunk &chunk, Memory &memory, const int32_t *codes, float *pcm) {
    const CodecGraphTensors &t = chunk.tensors;
    const int n = chunk.frames, before = w_.config.window - 1, keys = before + n;
    look_up(codes, n);
    // Frame i sees the `before` keys in front of it and its own; none from before the first frame.
    mask_.assign(static_cast<size_t>(n) * static_cast<size_t>(keys), -INFINITY);
    positions_.resize(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
        positions_[static_cast<size_t>(i)] = memory.position + i;
        const int first = std::max(i, before - memory.position);
        float *row = mask_.data() + static_cast<ptrdiff_t>(i) * keys;
        std::fill(row + first, row + i + before + 1, 0.0f);
    }
    const auto set = [](ggml_tensor *to, const void *values) {
        ggml_backend_tensor_set(to, values, 0, ggml_nbytes(to));
    };
    set(t.first, first_.data());
    set(t.rest, rest_.data());
    set(t.positions, positions_.data());
    set(t.mask, mask_.data());
    chunk.graph.compute();
    memory.position += n;
    ggml_backend_tensor_get(t.pcm, pcm, 0, ggml_nbytes(t.pcm));
    for (const auto &[name, x] : t.stages) {
        values_.resize(static_cast<size_t>(ggml_nelements(x)));
        ggml_backend_tensor_get(x, values_.data(), 0, ggml_nbytes(x));
        probe_(name, values_.data(), static_cast<int>(x->ne[1]), static_cast<int>(x->ne[0]));
    }
    const int samples = n * w_.config.samples_per_frame;
    for (int i = 0; i < samples; i++) {
        if (!std::isfinite(pcm[i]))
            fail(KZ_ERR_COMPUTE, "the codec decoder on %s produced a sample that is not finite",
                 backends_.name());
        pcm[i] = std::clamp(pcm[i], -1.0f, 1.0f);
    }
    if (probe_) probe_("pcm", pcm, samples, 1);
}

bool CodecGraphDecoder::decode(DecoderState &decoder_state, const int32_t *codes, int n_frames,
                               float *pcm, CodecStageTimes *) {
    auto &state = dynamic_cast<State &>(decoder_state);
    enter(state);
    while (n_frames > 0) {
        if (stopped()) return false;
        const auto most = static_cast<unsigned>(std::min(n_frames, longest_chunk()));
        const auto n = static_cast<int>(std::bit_floor(most));
        run(chunk(n), *state.memory, codes, pcm);
        codes += static_cast<ptrdiff_t>(n) * w_.config.n_codebooks;
        pcm += static_cast<ptrdiff_t>(n) * w_.config.samples_per_frame;
        n_frames -= n;
    }
    return true;
}

Placement CodecGraphDecoder::placement(int frames) {
    return chunk(std::min(frames, longest_chunk())).graph.placement();
}

}  // namespace kz
