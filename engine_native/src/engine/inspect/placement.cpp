#include "engine/inspect/placement.h"

#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/devices.h"

namespace kz {

namespace {

std::string quoted(const std::string &text) {
    std::string out(1, '"');
    for (const char c : text) {
        if (c == '"' || c == '\\') out.push_back('\\');
        out.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
    }
    out.push_back('"');
    return out;
}

std::string number(int64_t n) {
    return std::to_string(n);
}

std::string joined(char open, const std::vector<std::string> &items, char close) {
    std::string out(1, open);
    for (const std::string &item : items) {
        if (out.size() > 1) out.append(", ");
        out.append(item);
    }
    out.push_back(close);
    return out;
}

std::string list(const std::vector<std::string> &items) {
    return joined('[', items, ']');
}

// Fields as name and value in JSON.
std::string object(const std::vector<std::pair<const char *, std::string>> &fields) {
    std::vector<std::string> items;
    for (const auto &[name, value] : fields)
        items.push_back(quoted(name).append(": ").append(value));
    return joined('{', items, '}');
}

std::string graph_json(const char *name, const Placement &p) {
    std::vector<std::string> nodes;
    for (const auto &[where, count] : p.nodes) {
        nodes.push_back(object({{"device", quoted(where.first)},
                                {"op", quoted(where.second)},
                                {"count", number(count)}}));
    }
    return object({{"graph", quoted(name)},
                   {"splits", number(p.splits)},
                   {"copies", number(p.copies)},
                   {"copied_bytes", number(p.copied_bytes)},
                   {"nodes", list(nodes)}});
}

std::string part_json(const char *name, const char *device, int64_t device_bytes,
                      int64_t host_bytes, const std::vector<std::string> &graphs) {
    const std::string weights =
        object({{"device_bytes", number(device_bytes)}, {"host_bytes", number(host_bytes)}});
    return object({{"part", quoted(name)},
                   {"device", quoted(device)},
                   {"weights", weights},
                   {"graphs", list(graphs)}});
}

struct LmGraph {
    const char *name;
    int n_past, t, head;
};

std::string lm_json(const char *name, const LmWeights &lm, int n_threads,
                    const std::vector<LmGraph> &wanted) {
    const auto *w = std::get_if<LmGraphWeights>(&lm.form);
    if (!w || !w->device) return part_json(name, kOwnKernels, 0, lm.bytes(), {});
    DeviceLm computes(lm.config, *w, n_threads);
    std::vector<std::string> graphs;
    for (const LmGraph &g : wanted)
        graphs.push_back(graph_json(g.name, computes.placement(g.n_past, g.t, g.head)));
    return part_json(name, device_name(w->device), w->tensors->device_bytes(),
                     w->tensors->host_bytes(), graphs);
}

std::string decoder_json(const Codec &codec) {
    const auto *w = std::get_if<GraphWeights>(&codec.form);
    if (!w) return part_json("decoder", kOwnKernels, 0, codec.bytes(), {});
    GraphDecoder decoder(*w, 1);
    std::vector<std::string> graphs{graph_json("1 frame", decoder.placement(1))};
    const int longest = decoder.longest_chunk();
    if (longest > 1) {
        graphs.push_back(
            graph_json((std::to_string(longest) + " frames").c_str(), decoder.placement(longest)));
    }
    return part_json("decoder", device_name(w->device), w->tensors->device_bytes(),
                     w->tensors->host_bytes(), graphs);
}

const char *type_name(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:
            return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU:
            return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU:
            return "integrated gpu";
        case GGML_BACKEND_DEVICE_TYPE_ACCEL:
            return "accelerator";
        default:
            return "other";
    }
}

}  // namespace

std::string devices_json() {
    std::vector<std::string> items;
    const ggml_backend_dev_t chosen = find_device(kAutoDevice, "device");
    for (ggml_backend_dev_t d : other_devices()) {
        size_t free = 0, total = 0;
        ggml_backend_dev_memory(d, &free, &total);
        items.push_back(object({{"name", quoted(ggml_backend_dev_name(d))},
                                {"description", quoted(ggml_backend_dev_description(d))},
                                {"type", quoted(type_name(d))},
                                {"memory_free", number(static_cast<int64_t>(free))},
                                {"memory_total", number(static_cast<int64_t>(total))},
                                {"auto", d == chosen ? "true" : "false"}}));
    }
    return list(items);
}

std::string placement_json(const Model &model, int n_threads) {
    const auto *decoder = std::get_if<GraphWeights>(&model.codec.form);
    constexpr int kPast = 200;  // positions in front: a sentence and some seconds of speech
    const std::vector<std::string> parts{
        lm_json(
            "talker", model.talker.lm, n_threads,
            {{"prompt of 64 positions", 0, kMaxGraphPositions, 0}, {"1 position", kPast, 1, 0}}),
        lm_json("code predictor", model.cp.lm, n_threads,
                {{"pass of 2 positions", 0, 2, 0}, {"pass of 1 position", 2, 1, 1}}),
        decoder_json(model.codec)};
    return object({{"max_rows", number(decoder ? decoder->max_rows : 0)}, {"parts", list(parts)}});
}

}  // namespace kz
