// ggml and its processor device, reached through the device registry only.
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
};
using ContextPtr = std::unique_ptr<ggml_context, GgmlDeleter>;
using BackendPtr = std::unique_ptr<ggml_backend, GgmlDeleter>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, GgmlDeleter>;

// Takes ggml's log lines away from stderr; call before the first use of ggml.
void capture_ggml_log();

// Cores this process may run on: its affinity, not what the machine has.
int usable_cores();

// The processor device.  Throws KZ_ERR_INTERNAL when ggml has none.
ggml_backend_dev_t cpu_device();

// A backend of the processor device with its own work buffer: not shared between threads.
class Backend {
  public:
    explicit Backend(int n_threads);
    // A graph stops at its next node when *stop becomes true; nullptr: never.
    void set_stop(const std::atomic<bool> *stop);
    ggml_backend_t get() const { return backend_.get(); }

  private:
    BackendPtr backend_;
};

}  // namespace kz
