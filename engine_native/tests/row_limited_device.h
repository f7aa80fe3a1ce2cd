// A ggml device for tests, "Rows0": it has memory of its own, which is main memory that nobody else
// may touch, computes through ggml's processor device, and refuses products with more rows than it
// is told, as ggml's Hexagon device did.  It can also run out of memory, fail, throw as drivers do,
// and give NaN.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/backend.h"
#include "runtime/status.h"

// The interface between ggml and its devices, in the layout of ggml 0.25.  The wheel installs no
// header for it, so the functions are declared here, in order.
extern "C" {
struct ggml_backend_graph_optimize_params;

struct ggml_backend_buffer_type_i {
    const char *(*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
};
struct ggml_backend_buffer_type {
    ggml_backend_buffer_type_i iface;
    ggml_backend_dev_t device;
    void *context;
};

struct ggml_backend_buffer_i {
    void (*free_buffer)(ggml_backend_buffer_t);
    void *(*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t,
                          size_t, size_t, size_t);
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t,
                          size_t, size_t, size_t);
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor *, ggml_tensor *);
    void (*clear)(ggml_backend_buffer_t, uint8_t);
    void (*reset)(ggml_backend_buffer_t);
};
struct ggml_backend_buffer {
    ggml_backend_buffer_i iface;
    ggml_backend_buffer_type_t buft;
    void *context;
    size_t size;
    ggml_backend_buffer_usage usage;
};
ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t, ggml_backend_buffer_i,
                                               void *context, size_t size);

struct ggml_backend_i {
    const char *(*get_name)(ggml_backend_t);
    void (*free)(ggml_backend_t);
    void *set_tensor_async, *get_tensor_async, *set_tensor_2d_async, *get_tensor_2d_async;
    void *cpy_tensor_async, *synchronize;
    void *graph_plan_create, *graph_plan_free, *graph_plan_update, *graph_plan_compute;
    ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph *);
    void *event_record, *event_wait;
    void (*graph_optimize)(ggml_backend_t, ggml_cgraph *, ggml_backend_graph_optimize_params *);
};
struct ggml_backend {
    ggml_guid_t guid;
    ggml_backend_i iface;
    ggml_backend_dev_t device;
    void *context;
};

struct ggml_backend_device_i {
    const char *(*get_name)(ggml_backend_dev_t);
    const char *(*get_description)(ggml_backend_dev_t);
    void (*get_memory)(ggml_backend_dev_t, size_t *free, size_t *total);
    enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
    void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props *);
    ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char *params);
    ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void *, size_t, size_t);
    bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor *);
    bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
    bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor *);
    void *event_new, *event_free, *event_synchronize;
};
struct ggml_backend_device {
    ggml_backend_device_i iface;
    ggml_backend_reg_t reg;
    void *context;
};
}

namespace kz::testing {

class RowLimitedDevice {
  public:
    static constexpr const char *kName = "Rows0";

    // The one device of this process, registered with ggml at the first call.
    static RowLimitedDevice &get() {
        static RowLimitedDevice device;
        return device;
    }

    // As after start: takes everything.
    void reset() {
        max_rows = INT_MAX;
        refused_op = GGML_OP_COUNT;
        limited_op = GGML_OP_COUNT;
        memory_limit = largest_buffer = SIZE_MAX;
        graphs_until_failure = INT_MAX;
        throwing = Call::kNone;
        poisoned_graphs = 0;
        allocations = starts = 0;
        started = true;
    }

    enum class Call { kNone, kStart, kAllocate, kUpload, kDownload, kClear, kCompute };

    ggml_backend_dev_t handle() { return &device_; }

    std::atomic<int> max_rows{INT_MAX};          // of src1 of a product
    std::atomic<int> refused_op{GGML_OP_COUNT};  // another operation it does not know
    std::atomic<int> limited_op{GGML_OP_COUNT};  // it takes only so many rows of its src0
    std::atomic<int64_t> limited_rows{0};
    std::atomic<size_t> memory_limit{SIZE_MAX};    // in all
    std::atomic<size_t> largest_buffer{SIZE_MAX};  // that it asks to be asked for
    std::atomic<int> graphs_until_failure{INT_MAX};
    std::atomic<Call> throwing{Call::kNone};
    std::atomic<int> poisoned_graphs{0};  // so many give NaN everywhere
    std::atomic<size_t> allocated{0};     // bytes
    std::atomic<int> allocations{0};
    std::atomic<bool> started{true};  // as some drivers, it starts at its first use
    std::atomic<int> starts{0};

  private:
    static RowLimitedDevice &of(ggml_backend_dev_t d) {
        return *static_cast<RowLimitedDevice *>(d->context);
    }
    static RowLimitedDevice &of(ggml_backend_buffer_type_t type) {
        return *static_cast<RowLimitedDevice *>(type->context);
    }
    void start() {
        called(Call::kStart);
        if (started) return;
        starts++;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        started = true;
    }
    void called(Call call) const {
        if (throwing == call) throw std::runtime_error("the driver is lost");
    }

    RowLimitedDevice() {
        if (std::strncmp(ggml_version(), "0.25.", 5) != 0)
            fail(KZ_ERR_INTERNAL, "row_limited_device.h is written for ggml 0.25, not %s",
                 ggml_version());
        cpu_device();
        device_.context = this;
        device_.reg = nullptr;
        ggml_backend_device_i &i = device_.iface;
        i.get_name = [](ggml_backend_dev_t) { return kName; };
        i.get_description = [](ggml_backend_dev_t) { return "a test's \"device\""; };
        i.get_memory = [](ggml_backend_dev_t d, size_t *free, size_t *total) {
            *total = size_t{1} << 30;
            *free = *total - of(d).allocated;
        };
        i.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
        i.init_backend = [](ggml_backend_dev_t d, const char *) { return of(d).make_backend(); };
        i.get_buffer_type = [](ggml_backend_dev_t d) {
            of(d).start();
            return &of(d).memory_;
        };
        i.supports_op = [](ggml_backend_dev_t d, const ggml_tensor *op) {
            const RowLimitedDevice &self = of(d);
            if (op->op == self.refused_op) return false;
            if (op->op == self.limited_op && ggml_nrows(op->src[0]) > self.limited_rows)
                return false;
            if (op->op == GGML_OP_MUL_MAT && ggml_nrows(op->src[1]) > self.max_rows) return false;
            return ggml_backend_dev_supports_op(cpu_device(), op);
        };
        i.supports_buft = [](ggml_backend_dev_t d, ggml_backend_buffer_type_t type) {
            return type == &of(d).memory_;
        };
        make_memory();
        ggml_backend_device_register(&device_);
    }

    void make_memory() {
        memory_.device = &device_;
        memory_.context = this;
        memory_.iface.get_name = [](ggml_backend_buffer_type_t) { return kName; };
        memory_.iface.get_alignment = [](ggml_backend_buffer_type_t) { return size_t{64}; };
        memory_.iface.is_host = [](ggml_backend_buffer_type_t) { return false; };
        memory_.iface.get_max_size = [](ggml_backend_buffer_type_t type) {
            return of(type).largest_buffer.load();
        };
        memory_.iface.alloc_buffer = [](ggml_backend_buffer_type_t type, size_t size) {
            RowLimitedDevice &self = of(type);
            self.called(Call::kAllocate);
            self.allocations++;
            if (size > self.largest_buffer) return ggml_backend_buffer_t{};
            if (self.allocated + size > self.memory_limit) return ggml_backend_buffer_t{};
            self.allocated += size;
            return ggml_backend_buffer_init(type, buffer_interface(),
                                            std::aligned_alloc(64, (size + 63) / 64 * 64), size);
        };
    }

    static ggml_backend_buffer_i buffer_interface() {
        ggml_backend_buffer_i i{};
        i.free_buffer = [](ggml_backend_buffer_t b) {
            of(b->buft).allocated -= b->size;
            std::free(b->context);
        };
        i.get_base = [](ggml_backend_buffer_t b) { return b->context; };
        i.set_tensor = [](ggml_backend_buffer_t b, ggml_tensor *t, const void *from, size_t at,
                          size_t n) {
            of(b->buft).called(Call::kUpload);
            std::memcpy(static_cast<char *>(t->data) + at, from, n);
        };
        i.get_tensor = [](ggml_backend_buffer_t b, const ggml_tensor *t, void *to, size_t at,
                          size_t n) {
            of(b->buft).called(Call::kDownload);
            std::memcpy(to, static_cast<const char *>(t->data) + at, n);
        };
        i.clear = [](ggml_backend_buffer_t b, uint8_t value) {
            of(b->buft).called(Call::kClear);
            std::memset(b->context, value, b->size);
        };
        return i;
    }

    ggml_backend_t make_backend() {
        static uint8_t id[16] = {'R', 'o', 'w', 's'};
        auto *backend = new ggml_backend{};
        backend->guid = &id;
        backend->device = &device_;
        backend->context = new Backend(1);
        backend->iface.get_name = [](ggml_backend_t) { return kName; };
        backend->iface.free = [](ggml_backend_t b) {
            delete static_cast<Backend *>(b->context);
            delete b;
        };
        backend->iface.graph_compute = [](ggml_backend_t b, ggml_cgraph *graph) {
            RowLimitedDevice &self = of(b->device);
            self.called(Call::kCompute);
            if (self.graphs_until_failure-- <= 0) return GGML_STATUS_FAILED;
            const ggml_status status =
                ggml_backend_graph_compute(static_cast<Backend *>(b->context)->get(), graph);
            if (self.poisoned_graphs > 0) poison(self, graph);
            return status;
        };
        return backend;
    }

    static void poison(RowLimitedDevice &self, ggml_cgraph *graph) {
        self.poisoned_graphs--;
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
            const ggml_tensor *t = ggml_graph_node(graph, i);
            if (t->type == GGML_TYPE_F32)
                std::fill_n(static_cast<float *>(t->data), ggml_nbytes(t) / sizeof(float), NAN);
        }
    }

    ggml_backend_device device_{};
    ggml_backend_buffer_type memory_{};
};

}  // namespace kz::testing
