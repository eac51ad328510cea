/* MAPL: learned compression of activations (docs/mapl.md). gcomm.h includes this file. */
#ifndef GCOMM_MAPL_H
#define GCOMM_MAPL_H

#ifndef GCOMM_GCOMM_H
#error "include gcomm/gcomm.h"
#endif

/* ---- residual vector quantisation ---- */

/* Rows of dim values are cut into sub-vectors (the last filled up with zeros), divided by the row's root mean
 * square, and each sub-vector is the sum of one codeword a stage. One thread at a time. */
typedef struct gcomm_mapl_rvq gcomm_mapl_rvq;

typedef struct gcomm_mapl_rvq_config {
  size_t struct_size;
  uint64_t dim;       /* 1 or more */
  uint32_t subvector; /* 1 to 256; 0: 8 */
  uint32_t stages;    /* 1 to 16; 0: 4 */
  uint32_t codewords; /* of a stage, 2 to 4096; 0: 256 */
  uint32_t reserved;  /* 0 */
  uint64_t seed;      /* of the first codewords and of replacements */
  const char* isa;    /* as for gcomm_codec_create; the bits are the same */
} gcomm_mapl_rvq_config;

GCOMM_API gcomm_result gcomm_mapl_rvq_create(const gcomm_mapl_rvq_config* config, gcomm_mapl_rvq** rvq);
GCOMM_API void gcomm_mapl_rvq_destroy(gcomm_mapl_rvq* rvq);
/* What `tokens` rows take: two bytes a row, and stages codes of ceil(log2 codewords) bits a sub-vector. */
GCOMM_API gcomm_result gcomm_mapl_rvq_encoded_bytes(const gcomm_mapl_rvq* rvq, uint64_t tokens,
                                                    uint64_t* bytes);
/* Moves the codewords towards these rows (F32, BF16 or F16). GCOMM_ERR_NONFINITE, and nothing changes, for a
 * NaN or an Inf. */
GCOMM_API gcomm_result gcomm_mapl_rvq_update(gcomm_mapl_rvq* rvq, const void* z, gcomm_dtype dtype,
                                             uint64_t tokens);
GCOMM_API gcomm_result gcomm_mapl_rvq_encode(gcomm_mapl_rvq* rvq, const void* z, gcomm_dtype dtype,
                                             uint64_t tokens, void* dst, uint64_t capacity, uint64_t* written);
GCOMM_API gcomm_result gcomm_mapl_rvq_decode(const gcomm_mapl_rvq* rvq, const void* src, uint64_t bytes,
                                             void* dst, gcomm_dtype dtype, uint64_t tokens);
/* The codewords: stages x codewords x subvector floats. */
GCOMM_API gcomm_result gcomm_mapl_rvq_read(const gcomm_mapl_rvq* rvq, float* codebooks);
/* Goes on from these, as if they had been learned here. */
GCOMM_API gcomm_result gcomm_mapl_rvq_load(gcomm_mapl_rvq* rvq, const float* codebooks);

#endif
