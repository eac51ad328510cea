/* An all_reduce in fp8 over MPI, and what it sent.
 *
 *     mpicc mpi_all_reduce.c $(pkg-config --cflags --libs gcomm) -o mpi_all_reduce && mpiexec -n 4 ./mpi_all_reduce
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <gcomm/gcomm.h>

#define COUNT 1000000

static void must(gcomm_result result, const char* call) {
  if (result == GCOMM_OK) return;
  fprintf(stderr, "%s: %s\n", call, gcomm_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  MPI_Comm world = MPI_COMM_WORLD;
  gcomm_comm* comm = NULL;
  gcomm_codec* codec = NULL;
  gcomm_work* work = NULL;
  gcomm_tensor tensor;
  gcomm_comm_stats stats;
  float* data = (float*)malloc(COUNT * sizeof *data);
  float worst = 0;
  int level, rank, size, i;

  /* gcomm sends from threads of its own. */
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  must(gcomm_comm_create_mpi(&world, sizeof world, NULL, &comm), "gcomm_comm_create_mpi");
  must(gcomm_comm_codec(comm, "fp8_e4m3", &codec), "gcomm_comm_codec");

  for (i = 0; i < COUNT; ++i) data[i] = (float)(rank + 1) * (float)(i % 7);
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.input = tensor.output = data;
  tensor.count = COUNT;
  must(gcomm_all_reduce(comm, &tensor, 1, GCOMM_F32, GCOMM_SUM, codec, NULL, &work), "gcomm_all_reduce");
  must(gcomm_work_wait(work, -1), "gcomm_work_wait");
  gcomm_work_destroy(work);

  for (i = 0; i < COUNT; ++i) {
    const float sum = (float)(size * (size + 1) / 2) * (float)(i % 7);
    if (sum > 0) worst = fmaxf(worst, fabsf(data[i] - sum) / sum);
  }
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  must(gcomm_comm_get_stats(comm, &stats), "gcomm_comm_get_stats");
  printf("rank %d of %d over %s: largest relative error %.3f, %.2f of the bytes\n", rank, size,
         gcomm_comm_transport(comm), worst, (double)stats.wire_bytes / (double)stats.raw_bytes);
  gcomm_comm_destroy(comm); /* before MPI ends */
  MPI_Finalize();
  free(data);
  return worst < 0.13f ? 0 : 1;
}
