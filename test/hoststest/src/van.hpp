// The van of a node: its sockets, the table of nodes and the control messages.
// It is used from one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "frame.hpp"
#include "wire.pb.h"

enum Command { kEmpty = 0, kTerminate = 1, kAddNode = 2, kBarrier = 3, kAck = 4, kHeartbeat = 5 };
enum Role { kServer = 0, kWorker = 1, kScheduler = 2 };
enum DataType { kInt32 = 3, kUint64 = 8, kFloat = 9 };
enum Group { kSchedulerGroup = 1, kServerGroup = 2, kWorkerGroup = 4, kAll = 7 };

constexpr int kUnset = 0x7fffffff;  // what stands for no id on the wire
constexpr int kSchedulerId = 1;

// Environment is how a node is told its part in the job (DMLC_*).
struct Environment {
  Role role = kScheduler;
  int servers = 0, workers = 0;
  std::string root_host;
  int root_port = 0;
  std::string host;  // own address
  int port = 0;      // own port; 0 lets the system choose
  int timeout_ms = 0;

  // Read takes it from the process's environment; throws std::invalid_argument
  // with the variable's name.
  static Environment Read();
};

struct Message {
  int sender = -1;  // node id, -1 while it has none
  peer::Meta meta;
  std::vector<Frame> data;

  bool IsControl() const { return meta.has_control() && meta.control().cmd() != kEmpty; }

  // IsRelease is true of the end of a barrier.
  bool IsRelease() const { return IsControl() && meta.control().cmd() == kBarrier && !meta.request(); }
};

class Van {
 public:
  explicit Van(const Environment& env);
  ~Van();
  Van(const Van&) = delete;

  // Join registers the node and waits until all nodes of the job are there.
  void Join();

  // Serve runs the scheduler from the first registration to the last barrier.
  void Serve();

  // Arrive tells the scheduler that this node waits for a group; Receive then
  // returns a BARRIER message when all of it do.
  void Arrive(int group);

  // Wait is Arrive and the wait. Requests that come meanwhile, from a worker
  // that was released earlier, are for Receive.
  void Wait(int group);

  // Send sends to a node by id.
  void Send(int to, const peer::Meta& meta, std::vector<Frame> data = {});

  // Receive returns the next data message or barrier's end and passes over
  // other control messages. It throws when nothing comes within the timeout.
  // Idle lets time pass, in which connections come and go as where somebody always
  // receives: libzmq takes news of them only from who asks for messages, and refuses
  // a node's new connection for ever that it hears of together with the old one's end.
  void Idle(int milliseconds);
  Message Receive();

  const Environment& env() const { return env_; }
  int id() const { return id_; }
  int rank() const { return (id_ - 8) / 2; }
  static int ServerId(int rank) { return 8 + 2 * rank; }

  // First key of a server's range; of that after the last, the end of it all.
  uint64_t FirstKey(int server) const { return UINT64_MAX / env_.servers * server; }

 private:
  void Bind();
  void Connect(int id, const std::string& host, int port);
  Message ReceiveAny();
  void Admit(const peer::Meta& meta);
  void AnswerTable();
  void CountBarrier(const Message& message);
  void AdoptTable(const peer::Meta& meta);
  int Members(int group) const;

  Environment env_;
  void* context_ = nullptr;
  void* receiver_ = nullptr;
  std::map<int, void*> senders_;
  int id_ = -1;
  int timestamp_ = 0;
  std::vector<peer::Node> nodes_;   // at the scheduler, as they registered
  std::map<int, int> barriers_;     // at the scheduler, arrivals by group
  std::deque<Message> early_;       // came during a Wait
  bool released_ = false;           // at the scheduler, the barrier of all
};
