// Jobs in the manner of programs that many run on PS-lite, with their habits: the
// first worker pushes initial weights, which servers keep as they are; a server
// counts pushes, and answers none before it has one of each worker. Two kinds:
//
//   kvstore    one long key a push, with its length, as MXNet's dist_sync has it
//   positions  all keys of a server in each push, taken by their position, as
//              dist-lr has it
#pragma once

#include "roles.hpp"

bool IsSync(const Options& options);
int RunSyncServer(const Environment& env, const Options& options);
int RunSyncWorker(const Environment& env, const Options& options);
