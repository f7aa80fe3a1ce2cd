// ggml devices and compute graphs, reached through the device registry only.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <atomic>
#include <memory>

namespace kz {

struct GgmlDeleter {
    void operator()(ggml_context *p) const { ggml_free(p); }
    void operator()(ggml_backend *p) const { ggml_backend_free(p); }
    void operator()(ggml_backend_buffer *p) const { ggml_backend_buffer_free(p); }
    void operator()(ggml_gallocr *p) const { ggml_gallocr_free(p); }
};
using ContextPtr = std::unique_ptr<ggml_context, GgmlDeleter>;
using BackendPtr = std::unique_ptr<ggml_backend, GgmlDeleter>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, GgmlDeleter>;
using GallocrPtr = std::unique_ptr<ggml_gallocr, GgmlDeleter>;

// Takes ggml's log lines away from stderr; call before the first use of ggml.
void capture_ggml_log();

// Cores this process may run on: its affinity, not what the machine has.
int usable_cores();

// The processor device.  Throws KZ_ERR_INTERNAL when ggml has none.
ggml_backend_dev_t cpu_device();

// One ggml backend with its own work buffer and thread count: not shared between threads.
class Backend {
  public:
    explicit Backend(int n_threads);
    void set_threads(int n_threads);
    // The graph stops at the next node when *flag becomes true; nullptr: never.
    void set_abort_flag(const std::atomic<bool> *flag);
    // False when the abort flag stopped it; throws KZ_ERR_COMPUTE on failure.
    bool compute(ggml_cgraph *graph);
    ggml_backend_t get() const { return backend_.get(); }

  private:
    BackendPtr backend_;
    int n_threads_;
    const std::atomic<bool> *abort_flag_ = nullptr;
};

// A graph built once and computed many times: its nodes, and the memory of its tensors.
class Graph {
  public:
    explicit Graph(size_t max_nodes);
    ggml_context *ctx() const { return ctx_.get(); }
    ggml_cgraph *graph() const { return graph_; }
    void expand(ggml_tensor *t) { ggml_build_forward_expand(graph_, t); }
    // Gives every tensor its place.  Call once, after the last expand().
    void allocate(const Backend &backend);

  private:
    ContextPtr ctx_;
    ggml_cgraph *graph_;
    GallocrPtr allocr_;
};

}  // namespace kz
