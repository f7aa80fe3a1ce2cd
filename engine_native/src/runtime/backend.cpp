#include "runtime/backend.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/status.h"

namespace kz {

void capture_ggml_log() {
    // ggml has one log sink per process; the engine's own errors carry what matters.
    static std::once_flag once;
    std::call_once(once,
                   [] { ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr); });
}

int usable_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

namespace {
// Portable builds keep CPU variants in separate libraries, of which ggml loads the best one. By
// itself it looks beside the executable, which may be Python's, and in the current directory.
void load_backends_beside_ggml() {
    Dl_info ggml{};
    if (dladdr(reinterpret_cast<const void *>(&ggml_backend_load_all), &ggml) == 0) return;
    const std::string path = ggml.dli_fname;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) ggml_backend_load_all_from_path(path.substr(0, slash).c_str());
}
}  // namespace

ggml_backend_dev_t cpu_device() {
    static std::once_flag once;
    std::call_once(once, [] {
        auto missing = [] { return !ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); };
        if (missing()) load_backends_beside_ggml();
        if (missing()) ggml_backend_load_all();  // a build with a folder of its own
    });
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) fail(KZ_ERR_INTERNAL, "ggml offers no CPU device");
    return device;
}

namespace {
template <typename F>
F device_function(const char *name) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu_device());
    return reinterpret_cast<F>(ggml_backend_reg_get_proc_address(reg, name));
}
}  // namespace

Backend::Backend(int n_threads) : backend_(ggml_backend_dev_init(cpu_device(), nullptr)) {
    if (!backend_) fail(KZ_ERR_MEMORY, "ggml cannot initialise its CPU backend");
    auto set = device_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads");
    if (set) set(backend_.get(), std::max(1, n_threads));
}

void Backend::set_stop(const std::atomic<bool> *stop) {
    auto set =
        device_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback");
    if (!set) return;
    const auto stopped = [](void *data) {
        return static_cast<const std::atomic<bool> *>(data)->load(std::memory_order_relaxed);
    };
    set(backend_.get(), stop ? +stopped : nullptr, const_cast<std::atomic<bool> *>(stop));
}

}  // namespace kz
