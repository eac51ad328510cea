// GCOMM_HD marks what runs on host and device alike. On the host it also forces inlining: sources that are
// compiled for several instruction sets include the same headers, and an out-of-line copy made for one of them
// must never be the one that the linker keeps for all.
#pragma once

#if defined(__CUDACC__)
#define GCOMM_HD __host__ __device__ __forceinline__
#else
#define GCOMM_HD inline __attribute__((always_inline))
#endif
