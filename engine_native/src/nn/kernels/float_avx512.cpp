#if !defined(__AVX512F__)
#error "float_avx512.cpp needs -mavx512f"
#endif
#define KZ_ISA avx512
#define KZ_VW 16
#define KZ_MR 12
#include "nn/kernels/float_impl.h"
