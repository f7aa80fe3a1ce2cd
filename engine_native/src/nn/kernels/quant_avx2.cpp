#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "quant_avx2.cpp needs -mavx2 -mfma -mf16c"
#endif
#define KZ_ISA avx2
#include "nn/kernels/quant_256.h"
