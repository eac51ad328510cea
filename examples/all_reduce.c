/* C: the sum of a vector over all ranks, in 8 bits an element, with an error feedback of its own.
 *
 * cc examples/all_reduce.c $(pkg-config --cflags --libs gcomm) -o all_reduce
 * Any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT starts it, for instance
 * for RANK in 0 1; do export RANK; WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ./all_reduce & done;
 * wait
 */
#include <gcomm/gcomm.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000000

static void require(gcomm_result result, const char* what) {
  if (result == GCOMM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, gcomm_result_string(result), gcomm_last_error());
  exit(1);
}

int main(void) {
  gcomm_comm* comm;
  require(gcomm_comm_create_env(NULL, &comm), "gcomm_comm_create_env");
  const int rank = gcomm_comm_rank(comm), size = gcomm_comm_size(comm);

  gcomm_codec* codec; /* lives in the communicator */
  require(gcomm_comm_codec(comm, "fp8_e4m3:ef=1", &codec), "gcomm_comm_codec");

  float* values = malloc(COUNT * sizeof *values);
  if (values == NULL) return 1;
  for (int i = 0; i < COUNT; ++i) values[i] = (float)(rank + 1) * (float)(i % 100) / 100.0f;

  /* The key names what the codec remembers of this tensor from call to call. */
  const gcomm_tensor tensor = {sizeof tensor, values, values, COUNT, "gradient", 0, 0};
  gcomm_work* work;
  require(gcomm_all_reduce(comm, &tensor, 1, GCOMM_F32, GCOMM_SUM, codec, NULL, &work), "gcomm_all_reduce");
  require(gcomm_work_wait(work, -1), "gcomm_work_wait");
  gcomm_work_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0};
  require(gcomm_work_get_stats(work, &stats), "gcomm_work_get_stats");
  gcomm_work_destroy(work);

  float worst = 0;
  const float ranks = (float)(size * (size + 1) / 2);
  for (int i = 0; i < COUNT; ++i) {
    const float exact = ranks * (float)(i % 100) / 100.0f;
    const float error = values[i] > exact ? values[i] - exact : exact - values[i];
    if (error > worst) worst = error;
  }
  if (rank == 0) {
    printf("%d ranks: %.2f of the uncompressed bytes, largest error %.3f of values up to %.0f\n", size,
           (double)stats.wire_bytes / (double)stats.raw_bytes, worst, ranks);
  }
  free(values);
  gcomm_comm_destroy(comm);
  return worst < 0.15f * ranks ? 0 : 2;
}
