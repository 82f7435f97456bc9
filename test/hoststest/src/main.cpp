// A peer of a PS-lite job on libzmq and protobuf, written from the wire alone:
// scheduler, server or worker by DMLC_ROLE. It is the second opinion that the
// tests hold against the Go programs, and the speed to compare them with.
#include <malloc.h>

#include <climits>
#include <cstdlib>
#include <iostream>
#include <map>

#include "roles.hpp"
#include "sync.hpp"

namespace {

const char kUsage[] =
    "usage: DMLC_ROLE=... peer [--mode count|bench|kvstore|positions] [--keys N] [--shift N] [--space N]\n"
    "            [--width N] [--lens] [--pushpull] [--rounds N] [--wait MS]\n"
    "            [--count-while FILE]\n"
    "            [--discard] [--access FILE] [--hold FILE]\n";

size_t Number(const std::string& flag, const char* text, size_t least, size_t most) {
  char* end = nullptr;
  unsigned long long value = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || *text == 0 || *text == '-' || *end != 0 || value < least || value > most) {
    throw std::invalid_argument(flag + " wants a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

}  // namespace

Options Options::Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    std::string flag = argv[i];
    if (flag == "--lens") options.lens = true;
    else if (flag == "--pushpull") options.pushpull = true;
    else if (flag == "--discard") options.keep = false;
    else {
      const char* value = ++i < argc ? argv[i] : nullptr;
      if (flag == "--keys") options.keys = Number(flag, value, 1, 200000000);
      else if (flag == "--shift") options.shift = Number(flag, value, 0, 200000000);
      else if (flag == "--space") options.space = Number(flag, value, 1, size_t{1} << 40);
      else if (flag == "--width") options.width = Number(flag, value, 1, 1 << 28);
      else if (flag == "--rounds") options.rounds = static_cast<int>(Number(flag, value, 1, 1000000));
      else if (flag == "--wait") options.wait_ms = static_cast<int>(Number(flag, value, 0, 60000));
      else if (flag == "--mode" && value != nullptr) options.mode = value;
      else if (flag == "--access" && value != nullptr) options.access = value;
      else if (flag == "--count-while" && value != nullptr) options.goes_on = value;
      else if (flag == "--hold" && value != nullptr) options.hold = value;
      else throw std::invalid_argument("unknown argument or no value: " + flag);
    }
  }
  if (options.mode != "count" && options.mode != "bench" && !IsSync(options)) {
    throw std::invalid_argument("--mode is count, bench, kvstore or positions");
  }
  if (options.lens && options.width != 1) throw std::invalid_argument("--lens and --width exclude each other");
  return options;
}

int main(int argc, char** argv) {
  // Frames of megabytes come and go: keep their memory instead of having the
  // kernel clear it anew for each.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  try {
    Options options = Options::Parse(argc, argv);
    Environment env = Environment::Read();
    switch (env.role) {
      case kServer: return IsSync(options) ? RunSyncServer(env, options) : RunServer(env, options);
      case kWorker: return IsSync(options) ? RunSyncWorker(env, options) : RunWorker(env, options);
      case kScheduler: {
        Van van(env);
        van.Serve();
      }
    }
    return 0;
  } catch (const std::invalid_argument& e) {
    std::cerr << "peer: " << e.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "peer: " << e.what() << "\n";
    return 1;
  }
}
