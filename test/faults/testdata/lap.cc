// A worker and a server on PS-lite's own library, for the measurement of what is
// lost when connections break: build it against PS-lite's sources. The file
// LAP_KEYS has the keys, 8 bytes each in the machine's order, ascending. Each of
// LAP_STEPS steps pushes one to each key, pulls all and takes LAP_MILLIS at least.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "ps/ps.h"

static long number(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : 0;
}

static std::vector<ps::Key> keys() {
  std::ifstream file(std::getenv("LAP_KEYS"), std::ios::binary);
  std::vector<ps::Key> all;
  for (ps::Key key; file.read(reinterpret_cast<char*>(&key), sizeof key);) all.push_back(key);
  return all;
}

static void work() {
  ps::KVWorker<float> worker(0, 0);
  const auto all = keys();
  const std::vector<float> ones(all.size(), 1);
  std::vector<float> sums;
  for (long step = 1; step <= number("LAP_STEPS"); step++) {
    const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(number("LAP_MILLIS"));
    worker.Wait(worker.Push(all, ones));
    worker.Wait(worker.Pull(all, &sums));
    for (float sum : sums) {
      if (sum < step || sums.size() != all.size()) {
        std::fprintf(stderr, "step %ld: a key has %g\n", step, sum);
        std::_Exit(1);
      }
    }
    std::this_thread::sleep_until(next);
  }
}

int main() {
  ps::Start(0);
  if (ps::IsServer()) {
    auto* server = new ps::KVServer<float>(0);
    server->set_request_handle(ps::KVServerDefaultHandle<float>());
    ps::RegisterExitCallback([server] { delete server; });
  }
  if (ps::IsWorker()) work();
  ps::Finalize(0, true);
}
