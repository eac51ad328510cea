/* Two ranks in one C program: an all_reduce in fp8, a mismatch that both survive, and a codec used by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gcomm/gcomm.h>

#define RANKS 2
#define COUNT 100000

static void must(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "consumer.c: %s: %s\n", what, gcomm_last_error());
  exit(1);
}

static gcomm_work* start(gcomm_comm* comm, float* data, uint64_t count) {
  gcomm_tensor tensor;
  gcomm_codec* codec = NULL;
  gcomm_work* work = NULL;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.input = data;
  tensor.output = data;
  tensor.count = count;
  must(gcomm_comm_codec(comm, "fp8_e4m3", &codec) == GCOMM_OK, "codec");
  must(gcomm_all_reduce(comm, &tensor, 1, GCOMM_F32, GCOMM_SUM, codec, NULL, &work) == GCOMM_OK, "all_reduce");
  return work;
}

int main(void) {
  static float data[RANKS][COUNT];
  gcomm_comm* comms[RANKS];
  gcomm_work* works[RANKS];
  gcomm_codec* codec = NULL;
  uint64_t bytes = 0, written = 0;
  uint8_t* encoded;
  int rank, i;

  must(strcmp(gcomm_version_string(), "0.1.0") == 0, "version");
  must(gcomm_comm_create_local(RANKS, NULL, comms) == GCOMM_OK, "create");
  for (rank = 0; rank < RANKS; ++rank) {
    for (i = 0; i < COUNT; ++i) data[rank][i] = (float)(rank + 1) * (float)(i % 7);
    works[rank] = start(comms[rank], data[rank], COUNT);
  }
  for (rank = 0; rank < RANKS; ++rank) {
    must(gcomm_work_wait(works[rank], -1.0) == GCOMM_OK, "wait");
    gcomm_work_destroy(works[rank]);
  }
  for (i = 0; i < COUNT; ++i) {
    must(fabsf(data[0][i] - 3.0f * (float)(i % 7)) <= 0.08f * 18.0f, "the sum is near");
    must(data[0][i] == data[1][i], "the same bits on both");
  }

  for (rank = 0; rank < RANKS; ++rank) works[rank] = start(comms[rank], data[rank], (uint64_t)(COUNT - rank));
  for (rank = 0; rank < RANKS; ++rank) {
    must(gcomm_work_wait(works[rank], -1.0) == GCOMM_ERR_MISMATCH, "a mismatch");
    must(strstr(gcomm_last_error(), "float32[99999]") != NULL, "and its text");
    gcomm_work_destroy(works[rank]);
  }
  for (rank = 0; rank < RANKS; ++rank) gcomm_comm_destroy(comms[rank]);

  must(gcomm_codec_create("int8", NULL, &codec) == GCOMM_OK, "int8");
  must(gcomm_codec_max_encoded_bytes(codec, COUNT, &bytes) == GCOMM_OK, "size");
  encoded = (uint8_t*)malloc((size_t)bytes);
  must(encoded != NULL, "memory");
  must(gcomm_codec_encode(codec, data[0], GCOMM_F32, COUNT, NULL, encoded, bytes, &written) == GCOMM_OK, "encode");
  must(gcomm_codec_decode(codec, encoded, written, data[1], GCOMM_F32, COUNT) == GCOMM_OK, "decode");
  for (i = 0; i < COUNT; ++i) must(fabsf(data[0][i] - data[1][i]) <= 0.51f * 18.5f / 127.0f, "half a step");
  free(encoded);
  gcomm_codec_destroy(codec);
  puts("consumer.c: ok");
  return 0;
}
