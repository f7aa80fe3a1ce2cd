// The nodes of the decoder's graph for a chunk of frames.
#pragma once

#include <utility>
#include <vector>

#include "model/codec/graph_weights.h"

namespace kz {

// What a chunk's graph is made of.
struct GraphTensors {
    ggml_tensor *first, *rest;      // inputs [codebook_dim, frames]: rows of codebook 0, sums
    ggml_tensor *positions, *mask;  // inputs [frames], [window - 1 + frames, frames]
    ggml_tensor *pcm;               // [1, samples]
    std::vector<std::pair<const char *, ggml_tensor *>> stages;  // with keep_stages
};
size_t graph_nodes(const GraphWeights &w, int frames);
GraphTensors build_graph(PlacedGraph &graph, const GraphWeights &w, ggml_tensor *state, int frames,
                         bool keep_stages);

}  // namespace kz
