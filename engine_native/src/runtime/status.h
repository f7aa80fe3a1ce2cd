// Errors inside the engine are kz::Error; the C boundary turns them into a status and a
// thread-local message.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "kazeia.h"

namespace kz {

class Error : public std::runtime_error {
  public:
    Error(kz_status status, std::string message)
        : std::runtime_error(std::move(message)), status_(status) {}
    kz_status status() const { return status_; }

  private:
    kz_status status_;
};

[[noreturn]] void fail(kz_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void set_last_error(const std::string &message);
const char *last_error();

// Runs f at the C boundary: no exception passes, every failure leaves its message.
template <typename F>
kz_status guarded(F &&f) {
    try {
        f();
        return KZ_OK;
    } catch (const Error &e) {
        set_last_error(e.what());
        return e.status();
    } catch (const std::bad_alloc &) {
        set_last_error("out of memory");
        return KZ_ERR_MEMORY;
    } catch (const std::exception &e) {
        set_last_error(std::string("internal error: ") + e.what());
        return KZ_ERR_INTERNAL;
    }
}

}  // namespace kz
