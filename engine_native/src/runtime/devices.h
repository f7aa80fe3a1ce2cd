// ggml's devices by name, and tensors and graphs that are placed on one.
//
// A part of the model (talker, code predictor, decoder) on a device keeps its weights and states in
// the device's memory and computes through ggml's scheduler: nodes that the device does not support
// fall back to ggml's CPU device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backend.h"

namespace kz {

struct SchedDeleter {
    void operator()(ggml_backend_sched *p) const { ggml_backend_sched_free(p); }
};
using SchedPtr = std::unique_ptr<ggml_backend_sched, SchedDeleter>;

// Names of choices that are no device of ggml.
constexpr const char *kOwnKernels = "cpu", *kCpuGraph = "cpu-graph", *kAutoDevice = "auto";

// The device of a name, whatever its case: "cpu" (or nullptr, "") is nullptr, kernels of our own;
// "cpu-graph" is the graph that other devices compute, on ggml's CPU device; "auto" the first GPU,
// otherwise "cpu".  Throws KZ_ERR_ARGUMENT, naming the parameter and the devices there are.
ggml_backend_dev_t find_device(const char *name, const char *parameter);

// The name by which find_device finds it: ggml's, but "cpu-graph" for its CPU device.
const char *device_name(ggml_backend_dev_t device);

// Every ggml device but the processor.
std::vector<ggml_backend_dev_t> other_devices();

// Makes a device ready for use by several threads; nullptr: nothing to do.  Some set themselves up
// at their first use, not expecting two threads.  Throws KZ_ERR_COMPUTE naming the device.
void start_device(ggml_backend_dev_t device);

// All values of a tensor that has memory, or as many as `from` has.  What a driver throws becomes
// KZ_ERR_COMPUTE naming the device.
void upload(ggml_tensor *to, const void *values);
// `n` pieces of so many bytes that lie `distance` bytes apart in `to`, one after the other here.
void upload(ggml_tensor *to, const void *values, size_t piece, size_t n, size_t distance);
void download(const ggml_tensor *from, void *values);
void copy_values(ggml_tensor *from, ggml_tensor *to);  // of the same shape

// The backends that one thread computes with: the device's, and ggml's CPU behind it.
class DeviceBackends {
  public:
    // Throws KZ_ERR_MEMORY naming the device when it cannot be initialised.
    DeviceBackends(ggml_backend_dev_t device, int n_threads);
    ggml_backend_dev_t device() const { return device_; }
    const char *name() const { return device_name(device_); }
    std::vector<ggml_backend_t> all() const;
    // What the processor computes stops at its next node when *stop becomes true; nullptr: never.
    void set_stop(const std::atomic<bool> *stop) { cpu_.set_stop(stop); }

  private:
    ggml_backend_dev_t device_;
    BackendPtr own_;  // none where the device is the processor
    Backend cpu_;
};

// Tensors that outlive a graph: weights and states.
class PlacedTensors {
  public:
    explicit PlacedTensors(size_t max_tensors);

    // Its values come from fill, once it has memory; without one they are zero.
    using Fill = std::function<void(ggml_tensor *)>;
    ggml_tensor *add(const std::string &name, ggml_type type, std::vector<int64_t> ne,
                     Fill fill = {});

    // Gives every tensor memory on the device, but for those that a node of `graphs` reads or
    // writes which the device does not support: they stay in main memory, so that they are not
    // copied each time.  graphs: the smallest and the largest that will use them; whether a device
    // supports a node may depend on its size.  Throws KZ_ERR_MEMORY or KZ_ERR_COMPUTE naming the
    // device.
    void place(ggml_backend_dev_t device, const std::vector<const ggml_cgraph *> &graphs,
               bool weights);
    void clear();  // all zero

    int64_t device_bytes() const { return device_bytes_; }
    int64_t host_bytes() const { return host_bytes_; }

  private:
    struct Entry {
        ggml_tensor *tensor;
        Fill fill;
        bool on_host = false;
    };
    void find_homes(ggml_backend_dev_t device, const std::vector<const ggml_cgraph *> &graphs);
    int64_t allocate(ggml_backend_dev_t device, bool on_host, bool weights);

    ContextPtr ctx_;
    std::vector<Entry> entries_;
    std::vector<BufferPtr> buffers_;
    int64_t device_bytes_ = 0, host_bytes_ = 0;
};

// Where the nodes of a graph run and what is copied between devices each time.
struct Placement {
    std::map<std::pair<std::string, std::string>, int> nodes;  // (device, op) -> how many
    int splits = 0;                                            // stretches of nodes on one device
    int copies = 0;                                            // tensors copied to another device
    int64_t copied_bytes = 0;
};

// A graph built once, placed once and computed many times, without allocating.
class PlacedGraph {
  public:
    explicit PlacedGraph(size_t max_nodes);
    ggml_context *ctx() const { return ctx_.get(); }
    ggml_cgraph *graph() const { return graph_; }
    void expand(ggml_tensor *t) { ggml_build_forward_expand(graph_, t); }

    // An input that the caller sets before each run.
    ggml_tensor *input(ggml_type type, int64_t ne0, int64_t ne1 = 1);
    void output(ggml_tensor *t) {
        ggml_set_output(t);
        expand(t);
    }

    // Call once, after the last expand(); the backends must outlive the graph.  Throws
    // KZ_ERR_MEMORY or KZ_ERR_COMPUTE naming the device.
    void allocate(const DeviceBackends &backends);
    const Placement &placement() const { return placement_; }
    // False when the stop flag was seen.  Throws KZ_ERR_COMPUTE or KZ_ERR_MEMORY naming the device.
    bool compute();

  private:
    void check_writes(const std::vector<ggml_backend_t> &backends);
    void note_placement(const std::vector<ggml_tensor *> &sources);

    ContextPtr ctx_;
    ggml_cgraph *graph_;
    std::string device_;
    SchedPtr sched_;
    Placement placement_;
};

}  // namespace kz
