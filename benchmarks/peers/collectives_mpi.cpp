// The operations of bench_collectives by MPI: prints "operation bytes microseconds" for each. Run by
// bench_collectives with mpirun; built only where MPI is found.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

void measure(const char* name, int bytes, int rank, const std::function<void()>& operation) {
  const int count = bytes > (1 << 20) ? 10 : 2000;
  double seconds = 0;
  for (const int repetitions : {std::max(1, count / 10), count}) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < repetitions; ++i) operation();
    MPI_Barrier(MPI_COMM_WORLD);
    seconds = (MPI_Wtime() - begin) / repetitions;
  }
  if (rank == 0) std::printf("%s %d %.3f\n", name, bytes, seconds * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  constexpr int most = 16 << 20;
  std::vector<float> input(most / 4), output(most / 4);
  for (const int bytes : {4 << 10, most}) {
    const int count = bytes / 4, block = count / ranks;
    const std::vector<int> blocks(static_cast<std::size_t>(ranks), block);
    measure("all_reduce", bytes, rank,
            [&] { MPI_Allreduce(MPI_IN_PLACE, input.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    measure("reduce_scatter", bytes, rank, [&] {
      MPI_Reduce_scatter(input.data(), output.data(), blocks.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    measure("all_gather", bytes, rank, [&] {
      MPI_Allgather(input.data(), block, MPI_FLOAT, output.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("all_to_all", bytes, rank, [&] {
      MPI_Alltoall(input.data(), block, MPI_FLOAT, output.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("broadcast", bytes, rank, [&] { MPI_Bcast(input.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); });
    measure("send", bytes, rank, [&] {
      if (rank == 0) MPI_Send(input.data(), count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
      if (rank == 1) MPI_Recv(output.data(), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    });
  }
  MPI_Finalize();
  return 0;
}
