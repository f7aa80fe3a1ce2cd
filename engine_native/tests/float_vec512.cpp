// 512-bit vectors compiled for the baseline processor: proves the wide tiles (12 rows by 32
// columns) on machines without AVX-512.
#define KZ_ISA vec512
#define KZ_VW 16
#define KZ_MR 12
#include "nn/kernels/float_impl.h"
