// What the program can be told to be.
#pragma once

#include <string>

#include "van.hpp"

struct Options {
  std::string mode = "count";  // count or bench, or one of sync.hpp
  size_t keys = 1000;          // of each worker
  size_t shift = 0;            // worker r's first key is number r * shift
  size_t space = 0;            // of the key numbers that are spread; 0 for none: number = key
  size_t width = 1;            // values a key
  bool lens = false;           // 1 to 4 values a key, by number, with lens
  bool pushpull = false;       // one request a round for both
  int rounds = 4;              // at least
  std::string goes_on;         // file: as long as it is there, more rounds are made
  int wait_ms = 0;             // before a worker's first request: a server that is
                               // no peer may not be ready when all nodes are there
  bool keep = true;            // a server that does not answers zeros
  std::string access;          // file for the counts of each key
  std::string hold;            // file for which workers wait before they push zeros, at last

  // Parse reads the command line; throws std::invalid_argument.
  static Options Parse(int argc, char** argv);
};

int RunServer(const Environment& env, const Options& options);
int RunWorker(const Environment& env, const Options& options);
