// What this machine can do at most: the yardstick beside which `kazeia bench` lays the model.
#pragma once

#include <cstdint>

#include "nn/kernels/float_kernels.h"

namespace kz {

struct MachineSpeed {
    int threads = 0;
    const char *kernels = nullptr;   // name of the chosen set
    int64_t working_set = 0;         // bytes read in one pass
    double read_gbs[2] = {0, 0};     // 10^9 bytes a second from memory: 1 thread, all threads
    double gemm_gflops[2] = {0, 0};  // 10^9 f32 operations a second: 1 thread, all threads
};

// Reads a working set far beyond the last-level cache, and multiplies one of the decoder's
// convolutions with the engine's own kernel; each figure is the best of several short passes, so
// that what another process takes is seen least.  seconds: about how long all of it takes; slow
// machines take longer, since every figure needs two passes.  working_set: bytes, 0 chooses.
// Throws KZ_ERR_INTERNAL when the loops do not compute what they must.
MachineSpeed measure_machine(const Kernels &kernels, int threads, double seconds,
                             int64_t working_set);

}  // namespace kz
