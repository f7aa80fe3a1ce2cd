#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "float_avx2.cpp needs -mavx2 -mfma -mf16c"
#endif
#define KZ_ISA avx2
#define KZ_VW 8
#define KZ_MR 6
#include "nn/kernels/float_impl.h"
