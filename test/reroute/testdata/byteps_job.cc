// A job on BytePS's own server whose workers know every sum: program of TestBytePSPlaced.
//
// Server and scheduler run BytePS's byteps_server(). A worker does what BytePS's core does over
// PS-lite: a first push of each key, answered when all workers have made theirs, then in each step
// for each key a push and, right behind it, a pull, which is answered with the sum of all workers'.
// It compares every value, and ends with 1 where one is wrong.
//
//	byteps_job KEYS BYTES STEPS
//
// It is built with the folder of bytedance/ps-lite as PS, that of byteps as BPS (on its server's
// sources, as its setup.py has them, with -DBYTEPS_BUILDING_SERVER) and without CUDA and Python:
//
//	g++ -std=c++14 -O2 -fopenmp -I$PS/include byteps_job.cc SERVER_OBJECTS $PS/build/libps.a -lzmq -pthread -lrt -o byteps_job
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ps/ps.h"

extern "C" void byteps_server();

namespace {

// added is the i-th value that a worker pushes for a key in a step: small whole numbers, whose sums
// are exact.
float added(int step, int key, int rank, size_t i) {
  return static_cast<float>((step * 7 + key * 3 + rank * 5 + static_cast<int>(i % 251)) % 97);
}

int work(int keys, size_t bytes, int steps) {
  ps::StartPS(0, ps::Node::WORKER, -1, true, "byteps_job");
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
  ps::KVWorker<char> kv(0, 0);
  const auto ranges = ps::Postoffice::Get()->GetServerKeyRanges();
  const int rank = ps::MyRank(), workers = ps::NumWorkers();
  const size_t values = bytes / sizeof(float);
  std::vector<ps::SArray<ps::Key>> names(keys);
  std::vector<ps::SArray<char>> pushed(keys), pulled(keys);
  std::vector<ps::SArray<int>> lens(keys), gotLens(keys);
  for (int k = 0; k < keys; k++) {
    names[k] = ps::SArray<ps::Key>(1, ranges[k % ranges.size()].begin() + k);
    pushed[k] = ps::SArray<char>(values * sizeof(float), 0);
    pulled[k] = ps::SArray<char>(values * sizeof(float), 0);
    lens[k] = ps::SArray<int>(1, static_cast<int>(values * sizeof(float)));
    gotLens[k] = ps::SArray<int>(1, 0);
  }
  std::vector<int> waits;
  for (int k = 0; k < keys; k++) waits.push_back(kv.ZPush(names[k], pushed[k], lens[k]));
  for (int w : waits) kv.Wait(w);
  size_t wrong = 0, checked = 0;
  for (int step = 0; step < steps; step++) {
    waits.clear();
    for (int k = 0; k < keys; k++) {
      auto* v = reinterpret_cast<float*>(pushed[k].data());
      for (size_t i = 0; i < values; i++) v[i] = added(step, k, rank, i);
      waits.push_back(kv.ZPush(names[k], pushed[k], lens[k]));
      waits.push_back(kv.ZPull(names[k], &pulled[k], &gotLens[k]));
    }
    for (int w : waits) kv.Wait(w);
    for (int k = 0; k < keys; k++) {
      const auto* v = reinterpret_cast<const float*>(pulled[k].data());
      for (size_t i = 0; i < values; i++) {
        float want = 0;
        for (int r = 0; r < workers; r++) want += added(step, k, r, i);
        checked++;
        if (v[i] != want && wrong++ < 10) {
          std::fprintf(stderr, "worker %d, step %d, key %d: value %zu is %g, want %g\n", rank, step, k, i, v[i], want);
        }
      }
    }
  }
  std::printf("worker %d: %zu values in %d steps, %zu wrong\n", rank, checked, steps, wrong);
  std::fflush(stdout);
  ps::Finalize(0, ps::Node::WORKER, true);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const char* role = std::getenv("DMLC_ROLE");
  if (argc != 4 || role == nullptr) {
    std::fprintf(stderr, "byteps_job KEYS BYTES STEPS, with DMLC_ROLE and what else PS-lite wants in the environment\n");
    return 2;
  }
  if (std::string(role) != "worker") {
    byteps_server();
    return 0;
  }
  return work(std::atoi(argv[1]), static_cast<size_t>(std::atoll(argv[2])), std::atoi(argv[3]));
}
