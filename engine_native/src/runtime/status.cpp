#include "runtime/status.h"

#include <cstdarg>
#include <cstdio>

namespace kz {

namespace {
thread_local std::string t_last_error;
}

void fail(kz_status status, const char *format, ...) {
    char buffer[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    throw Error(status, buffer);
}

void set_last_error(const std::string &message) {
    t_last_error = message;
}

const char *last_error() {
    return t_last_error.c_str();
}

}  // namespace kz
