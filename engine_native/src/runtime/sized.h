// Structs of the C interface that begin with their own size, so that programs and engines of
// different versions understand each other: such a struct only ever grows at its end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kz {

// Copies what the caller knows of a struct over `full`, which holds the defaults.  `given` begins
// with its size.  Fails with KZ_ERR_ARGUMENT when it is smaller than `oldest` bytes, the first size
// such a struct had, or when it is larger than `full` and asks for something by a field this engine
// lacks.
void read_sized(void *full, size_t full_size, const void *given, size_t oldest, const char *name);

// Fails as above, but lets the unknown end of a larger struct be: it is for the engine to fill.
void check_sized(const void *out, size_t oldest, const char *name);

// Copies `full` into what the caller knows of the struct; what the engine does not know becomes 0.
// The caller's size stays as it is.
void write_sized(void *out, const void *full, size_t full_size);

}  // namespace kz
