// 128-bit vectors: what every x86-64 and every ARMv8-A processor has.
#define KZ_ISA vec128
#define KZ_VW 4
#define KZ_MR 6
#include "nn/kernels/float_impl.h"
