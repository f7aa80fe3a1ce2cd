#include "runtime/devices.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <set>

#include "runtime/status.h"

namespace kz {

namespace {

bool same_name(const std::string &a, const std::string &b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
        return std::tolower(x) == std::tolower(y);
    });
}

bool is_view(const ggml_tensor *t) {
    switch (t->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        default:
            return false;
    }
}

const ggml_tensor *base(const ggml_tensor *t) {
    while (t->view_src) t = t->view_src;
    return t;
}

std::string device_list() {
    std::string names = std::string(kOwnKernels) + ", " + kCpuGraph + ", " + kAutoDevice;
    for (ggml_backend_dev_t d : other_devices())
        names += std::string(", ") + ggml_backend_dev_name(d);
    return names;
}

// Backends throw what their drivers throw, through ggml's C functions.
template <typename F>
auto on_device(const char *device, const char *what, F f) {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const Error &) {
        throw;
    } catch (const std::exception &e) {
        fail(KZ_ERR_COMPUTE, "device %s: %s failed: %s", device, what, e.what());
    }
}

ggml_backend_buffer_t home_of(const ggml_tensor *t) {
    return base(t)->buffer;
}

// Memory has its device's name; that of the processor need not tell its device.
const char *device_of(const ggml_tensor *t) {
    return ggml_backend_buffer_name(home_of(t));
}

}  // namespace

void start_device(ggml_backend_dev_t device) {
    if (!device) return;
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    on_device(ggml_backend_dev_name(device), "starting it",
              [&] { ggml_backend_dev_buffer_type(device); });
}

void upload(ggml_tensor *to, const void *values) {
    on_device(device_of(to), "an upload",
              [&] { ggml_backend_tensor_set(to, values, 0, ggml_nbytes(to)); });
}

void upload(ggml_tensor *to, const void *values, size_t piece, size_t n, size_t distance) {
    on_device(device_of(to), "an upload",
              [&] { ggml_backend_tensor_set_2d(to, values, 0, piece, n, distance, piece); });
}

void download(const ggml_tensor *from, void *values) {
    on_device(device_of(from), "a download",
              [&] { ggml_backend_tensor_get(from, values, 0, ggml_nbytes(from)); });
}

void copy_values(ggml_tensor *from, ggml_tensor *to) {
    on_device(device_of(to), "a copy", [&] { ggml_backend_tensor_copy(from, to); });
}

std::vector<ggml_backend_dev_t> other_devices() {
    const ggml_backend_dev_t cpu = cpu_device();  // loads what there is to load
    std::vector<ggml_backend_dev_t> devices;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        if (ggml_backend_dev_get(i) != cpu) devices.push_back(ggml_backend_dev_get(i));
    }
    return devices;
}

ggml_backend_dev_t find_device(const char *name, const char *parameter) {
    const std::string wanted = name ? name : "";
    if (wanted.empty() || same_name(wanted, kOwnKernels)) return nullptr;
    if (same_name(wanted, kCpuGraph)) return cpu_device();
    const auto devices = other_devices();
    if (same_name(wanted, kAutoDevice)) {
        for (ggml_backend_dev_t d : devices) {
            const auto type = ggml_backend_dev_type(d);
            if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU)
                return d;
        }
        return nullptr;
    }
    for (ggml_backend_dev_t d : devices) {
        if (same_name(wanted, ggml_backend_dev_name(d))) return d;
    }
    fail(KZ_ERR_ARGUMENT, "%s is '%s', expected one of %s: what this build of ggml has here",
         parameter, name, device_list().c_str());
}

const char *device_name(ggml_backend_dev_t device) {
    return device == cpu_device() ? kCpuGraph : ggml_backend_dev_name(device);
}

DeviceBackends::DeviceBackends(ggml_backend_dev_t device, int n_threads)
    : device_(device), cpu_(n_threads) {
    if (device == cpu_device()) return;
    own_.reset(
        on_device(name(), "starting it", [&] { return ggml_backend_dev_init(device, nullptr); }));
    if (!own_) fail(KZ_ERR_MEMORY, "device %s cannot be initialised", name());
}

std::vector<ggml_backend_t> DeviceBackends::all() const {
    std::vector<ggml_backend_t> backends;
    if (own_) backends.push_back(own_.get());
    backends.push_back(cpu_.get());
    return backends;
}

PlacedTensors::PlacedTensors(size_t max_tensors) {
    ctx_.reset(ggml_init({ggml_tensor_overhead() * max_tensors, nullptr, true}));
    if (!ctx_) fail(KZ_ERR_MEMORY, "cannot allocate tensor descriptions");
    entries_.reserve(max_tensors);
}

ggml_tensor *PlacedTensors::add(const std::string &name, ggml_type type, std::vector<int64_t> ne,
                                Fill fill) {
    if (entries_.size() == entries_.capacity())
        fail(KZ_ERR_INTERNAL, "no room for tensor %s", name.c_str());
    ggml_tensor *t = ggml_new_tensor(ctx_.get(), type, static_cast<int>(ne.size()), ne.data());
    // Named here: ggml would name it when a graph is built, and several threads build graphs.
    ggml_set_name(t, name.c_str());
    entries_.push_back({t, std::move(fill)});
    return t;
}

// Asks the device about every node as if all tensors were in its memory.
void PlacedTensors::find_homes(ggml_backend_dev_t device,
                               const std::vector<const ggml_cgraph *> &graphs) {
    const BufferPtr pretended(
        ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), 0));
    std::set<const ggml_tensor *> refused;
    for (Entry &e : entries_) e.tensor->buffer = pretended.get();
    for (const ggml_cgraph *asked : graphs) {
        auto *graph = const_cast<ggml_cgraph *>(asked);
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
            const ggml_tensor *node = ggml_graph_node(graph, i);
            if (is_view(node) || ggml_backend_dev_supports_op(device, node)) continue;
            refused.insert(base(node));
            // A part that is read is worth its copy; the whole need not move for it.
            for (const ggml_tensor *source : node->src) {
                if (source && !source->view_src) refused.insert(source);
            }
        }
    }
    for (Entry &e : entries_) {
        e.tensor->buffer = nullptr;
        e.on_host = refused.count(e.tensor) > 0;
    }
}

// Memory for the tensors that live on the device, or for the others.  Returns its bytes.
int64_t PlacedTensors::allocate(ggml_backend_dev_t device, bool on_host, bool weights) {
    const ggml_backend_dev_t home = on_host ? cpu_device() : device;
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(home);
    const size_t alignment = ggml_backend_buft_get_alignment(type);
    const size_t most = ggml_backend_buft_get_max_size(type);
    int64_t total = 0;
    const auto size_of = [&](const ggml_tensor *t) {
        return (ggml_backend_buft_get_alloc_size(type, t) + alignment - 1) / alignment * alignment;
    };
    for (size_t first = 0; first < entries_.size();) {
        size_t bytes = 0, last = first;
        for (; last < entries_.size(); last++) {
            if (entries_[last].on_host != on_host) continue;
            const size_t size = size_of(entries_[last].tensor);
            if (bytes > 0 && bytes + size + alignment > most) break;
            bytes += size;
        }
        if (bytes == 0) break;
        BufferPtr buffer(on_device(ggml_backend_dev_name(home), "an allocation", [&] {
            return ggml_backend_buft_alloc_buffer(type, bytes + alignment);
        }));
        if (!buffer) {
            fail(KZ_ERR_MEMORY, "device %s has no %.1f MB for %s", ggml_backend_dev_name(home),
                 static_cast<double>(bytes) / 1e6, weights ? "weights" : "a stream's state");
        }
        if (weights) ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_tallocr places = ggml_tallocr_new(buffer.get());
        for (; first < last; first++) {
            if (entries_[first].on_host != on_host) continue;
            if (ggml_tallocr_alloc(&places, entries_[first].tensor) != GGML_STATUS_SUCCESS)
                fail(KZ_ERR_MEMORY, "device %s refuses tensor %s", ggml_backend_dev_name(home),
                     entries_[first].tensor->name);
        }
        total += static_cast<int64_t>(bytes);
        buffers_.push_back(std::move(buffer));
    }
    return total;
}

void PlacedTensors::place(ggml_backend_dev_t device, const std::vector<const ggml_cgraph *> &graphs,
                          bool weights) {
    if (device != cpu_device()) find_homes(device, graphs);
    device_bytes_ = allocate(device, false, weights);
    host_bytes_ = allocate(device, true, weights);
    const bool all_filled =
        std::all_of(entries_.begin(), entries_.end(), [](const Entry &e) { return !!e.fill; });
    if (!all_filled) clear();
    for (Entry &e : entries_) {
        if (e.fill)
            on_device(ggml_backend_dev_name(device), "an upload", [&] { e.fill(e.tensor); });
        e.fill = {};
    }
}

void PlacedTensors::clear() {
    for (const BufferPtr &b : buffers_) {
        on_device(ggml_backend_buffer_name(b.get()), "clearing memory",
                  [&] { ggml_backend_buffer_clear(b.get(), 0); });
    }
}

PlacedGraph::PlacedGraph(size_t max_nodes) {
    ctx_.reset(ggml_init(
        {ggml_tensor_overhead() * max_nodes * 2 + ggml_graph_overhead_custom(max_nodes, false),
         nullptr, true}));
    if (!ctx_) fail(KZ_ERR_MEMORY, "cannot allocate a graph of %zu nodes", max_nodes);
    graph_ = ggml_new_graph_custom(ctx_.get(), max_nodes, false);
}

ggml_tensor *PlacedGraph::input(ggml_type type, int64_t ne0, int64_t ne1) {
    ggml_tensor *t = ggml_new_tensor_2d(ctx_.get(), type, ne0, ne1);
    ggml_set_input(t);
    return t;
}

void PlacedGraph::allocate(const DeviceBackends &backends) {
    device_ = backends.name();
    std::vector<ggml_tensor *> sources;  // of every node, as they were built
    const int n = ggml_graph_n_nodes(graph_);
    for (int i = 0; i < n; i++) {
        ggml_tensor *node = ggml_graph_node(graph_, i);
        sources.push_back(node);
        sources.insert(sources.end(), node->src, node->src + GGML_MAX_SRC);
    }
    auto all = backends.all();
    check_writes(all);
    // The scheduler wants room for nodes and leaves, of which there are at most two a node here.
    sched_.reset(ggml_backend_sched_new(all.data(), nullptr, static_cast<int>(all.size()),
                                        static_cast<size_t>(n) * 3 + 16, false, false));
    if (!sched_) fail(KZ_ERR_MEMORY, "cannot allocate a scheduler");
    const bool placed = on_device(device_.c_str(), "placing a graph", [&] {
        return ggml_backend_sched_alloc_graph(sched_.get(), graph_);
    });
    if (!placed) fail(KZ_ERR_MEMORY, "device %s has no memory for a graph", device_.c_str());
    note_placement(sources);
}

// The scheduler ends the process where no backend computes a node into the memory it has already.
void PlacedGraph::check_writes(const std::vector<ggml_backend_t> &backends) {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); i++) {
        const ggml_tensor *node = ggml_graph_node(graph_, i);
        const ggml_backend_buffer_t home = home_of(node);
        const auto computes = [&](ggml_backend_t backend) {
            return ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(home)) &&
                   ggml_backend_supports_op(backend, node);
        };
        if (home && std::none_of(backends.begin(), backends.end(), computes)) {
            fail(KZ_ERR_COMPUTE, "device %s refuses %s into its own tensor %s", device_of(node),
                 ggml_op_desc(node), base(node)->name);
        }
    }
}

// The scheduler puts its copies in the place of the sources that a node had.
void PlacedGraph::note_placement(const std::vector<ggml_tensor *> &sources) {
    std::set<const ggml_tensor *> copies;
    for (size_t i = 0; i < sources.size(); i += GGML_MAX_SRC + 1) {
        ggml_tensor *node = sources[i];
        if (is_view(node)) continue;
        ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched_.get(), node);
        const char *device = ggml_backend_dev_name(ggml_backend_get_device(backend));
        placement_.nodes[{device, ggml_op_desc(node)}]++;
        for (size_t j = 0; j < GGML_MAX_SRC; j++) {
            if (node->src[j] != sources[i + 1 + j]) copies.insert(node->src[j]);
        }
    }
    placement_.splits = ggml_backend_sched_get_n_splits(sched_.get());
    placement_.copies = static_cast<int>(copies.size());
    for (const ggml_tensor *copy : copies)
        placement_.copied_bytes += static_cast<int64_t>(ggml_nbytes(copy));
}

bool PlacedGraph::compute() {
    const ggml_status status = on_device(device_.c_str(), "a graph", [&] {
        return ggml_backend_sched_graph_compute(sched_.get(), graph_);
    });
    if (status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ABORTED)
        return status == GGML_STATUS_SUCCESS;
    fail(status == GGML_STATUS_ALLOC_FAILED ? KZ_ERR_MEMORY : KZ_ERR_COMPUTE,
         "device %s: a graph failed: %s", device_.c_str(), ggml_status_to_string(status));
}

}  // namespace kz
