// The codec decoder as a ggml graph of plain f32 operations, for any device of ggml, and the oracle
// of the kernels in kernel_decoder.h: the same layers, every output a plain sum of products.
//
// All carries of a stream (left contexts of the convolutions, the window's keys and values) are
// slices of one tensor in the device's memory.  Graphs are prepared for chunks of 1, 2, 4 and 8
// frames and kept; they read the carries in front of the chunk and write the new ones.  A decoder
// that goes on with another stream swaps that tensor, nothing else.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/codec/decoder.h"
#include "model/codec/graph_weights.h"

namespace kz {

class GraphDecoder final : public Decoder {
  public:
    // n_threads: of ggml's CPU device, for what the device does not support.
    GraphDecoder(const GraphWeights &weights, int n_threads);
    ~GraphDecoder() override;
    GraphDecoder(const GraphDecoder &) = delete;

    static std::unique_ptr<DecoderState> make_state();

    bool decode(DecoderState &state, const int32_t *codes, int n_frames, float *pcm,
                CodecStageTimes *times) override;
    void set_probe(Probe probe) override;
    // Of the graph of so many frames, or of the next shorter one there is.
    Placement placement(int frames);
    int longest_chunk() const { return w_.longest_chunk(); }

  private:
    struct Memory;
    struct State;
    struct Chunk;
    // Makes the carries of a stream those that the graphs work on.
    void enter(State &state);
    void save(Memory &memory);
    Chunk &chunk(int frames);
    bool run(Chunk &chunk, Memory &memory, const int32_t *codes, float *pcm);

    const GraphWeights &w_;
    DeviceBackends backends_;
    std::unique_ptr<PlacedTensors> work_tensors_;
    ggml_tensor *work_ = nullptr;  // [state_floats]
    std::weak_ptr<Memory> current_;
    std::map<int, std::unique_ptr<Chunk>> chunks_;  // by frames
    FloatBuffer first_, rest_, entry_, mask_, values_;
    std::vector<int32_t> positions_;
};

}  // namespace kz
