// Which instruction sets the kernels are compiled for: the baseline of x86-64, AVX2 and AVX-512.
//
// Included by every file that uses Highway, before any header of it. SSSE3 and SSE4 are left out, and
// AVX3_DL adds nothing that these kernels use: each target is another compilation of every kernel.
// The best set that the machine has is chosen at run time, once per process.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
