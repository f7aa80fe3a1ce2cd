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

#include "model/codec/codebooks.h"
#include "model/codec/decoder.h"
#include "runtime/devices.h"
#include "weights/config.h"

namespace kz {

// Bounds of max_rows: with fewer a chunk would be split into hundreds of products.
constexpr int kLeastRows = 64, kMostRows = 1 << 30;

// The last rows of a layer's input, kept for the next chunk: [rows][width] in the state.
struct Carry {
    int width = 0, rows = 0;
    size_t offset = 0;  // floats
};

// Steps of x, the context first, times a matrix a tap.  A transposed convolution is one whose
// output step holds `stride` steps.
struct GraphConv {
    std::vector<ggml_tensor *> taps;  // [in, stride * out] each, the oldest step first
    ggml_tensor *bias = nullptr;      // [out]
    int dilation = 1, stride = 1;
    Carry carry;
};

struct GraphLinear {
    ggml_tensor *w = nullptr, *bias = nullptr;  // [in, out], [out] or none
};

struct GraphSnake {
    ggml_tensor *alpha = nullptr, *beta = nullptr;  // exp() and reciprocal folded by the file
};

struct GraphPreLayer {
    ggml_tensor *attn_norm, *ffn_norm, *attn_scale, *ffn_scale;
    GraphLinear q, k, v, out, gate, up, down;
    Carry keys, values;
};

struct GraphUpsample {
    GraphConv conv;
    std::vector<ggml_tensor *> depthwise;  // [latent] a tap
    ggml_tensor *depthwise_bias;
    Carry depthwise_carry;
    ggml_tensor *norm_w, *norm_b, *gamma;
    GraphLinear pw1, pw2;
};

struct GraphDacBlock {
    GraphSnake snake;
    GraphConv conv;
    struct Unit {
        GraphSnake act1, act2;
        GraphConv conv1;
        GraphLinear conv2;
    } res[3];
};

struct CodecGraphWeights {
    CodecConfig config;
    ggml_backend_dev_t device = nullptr;
    int max_rows = 0;  // of a product; 0: any
    const Kernels *kernels = nullptr;
    Codebooks codebooks;
    GraphLinear quant_first, quant_rest;
    GraphConv pre_conv;
    GraphLinear in_proj, out_proj;
    std::vector<GraphPreLayer> layers;
    ggml_tensor *output_norm = nullptr;
    std::vector<GraphUpsample> upsample;
    GraphConv entry;
    std::vector<GraphDacBlock> blocks;
    GraphSnake post_snake;
    GraphConv post_conv;
    size_t state_floats = 0;
    std::unique_ptr<PlacedTensors> tensors;

    int64_t bytes() const {
        return tensors->device_bytes() + tensors->host_bytes() + codebooks.bytes();
    }
    // Frames of the longest graph: fewer where products are split into very many.
    int longest_chunk() const;
    // Gives tensors their memory, as the graphs of one frame and of the longest chunk need it.
    // state: the carries [state_floats].  Throws KZ_ERR_MEMORY naming the device.
    void place(PlacedTensors &placed, ggml_tensor *state, bool weights) const;
};

// Throws KZ_ERR_MEMORY naming the device.
CodecGraphWeights load_codec_graph(const GgufFile &file, const Kernels &kernels,
                                   ggml_backend_dev_t device, int max_rows);

// What a chunk's graph is made of.
struct CodecGraphTensors {
    ggml_tensor *first, *rest;      // inputs [codebook_dim, frames]: rows of codebook 0, sums
    ggml_tensor *positions, *mask;  // inputs [frames], [window - 1 + frames, frames]
    ggml_tensor *pcm;               // [1, samples]
    std::vector<std::pair<const char *, ggml_tensor *>> stages;  // with keep_stages
};
size_t codec_graph_nodes(const CodecGraphWeights &w, int frames);
CodecGraphTensors build_codec_graph(PlacedGraph &graph, const CodecGraphWeights &w,
                                    ggml_tensor *state, int frames, bool keep_stages);

class CodecGraphDecoder final : public Decoder {
  public:
    // n_threads: of ggml's CPU device, for what the device does not support.
    CodecGraphDecoder(const CodecGraphWeights &weights, int n_threads);
    ~CodecGraphDecoder() override;
    CodecGraphDecoder(const CodecGraphDecoder &) = delete;

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
    void run(Chunk &chunk, Memory &memory, const int32_t *codes, float *pcm);

    const CodecGraphWeights &w_;
    DeviceBackends backends_;
    std::unique_ptr<PlacedTensors> work_tensors_;
    ggml_tensor *work_ = nullptr;  // [state_floats]
    std::weak_ptr<Memory> current_;
    std::map<int, std::unique_ptr<Chunk>> chunks_;  // by frames
    FloatBuffer first_, rest_, entry_, mask_, values_;
    std::vector<int32_t> positions_;
};

}  // namespace kz
