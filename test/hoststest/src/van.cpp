#include "van.hpp"

#include <cerrno>
#include <cstdlib>
#include <iostream>

namespace {

std::string Need(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0) throw std::invalid_argument(std::string(name) + " is not set");
  return value;
}

int Number(const char* name, const std::string& text, int least, int most) {
  char* end = nullptr;
  long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != 0 || value < least || value > most) {
    throw std::invalid_argument(std::string(name) + " is \"" + text + "\", want a number from " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int>(value);
}

std::string Optional(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : otherwise;
}

void Check(int result, const std::string& what) {
  if (result == -1) throw Failure(what + ": " + zmq_strerror(errno));
}

// Endpoint is ZeroMQ's name for an address; that of IPv6 has brackets there,
// but not in the table of nodes.
std::string Endpoint(std::string host, const std::string& port) {
  if (host.find(':') != std::string::npos && host[0] != '[') host = "[" + host + "]";
  return "tcp://" + host + ":" + port;
}

void SetInt(void* socket, int option, int value) {
  Check(zmq_setsockopt(socket, option, &value, sizeof value), "setting a socket's option");
}

peer::Meta ControlMeta(int command) {
  peer::Meta meta;
  meta.set_head(kUnset);
  meta.set_push(false);
  meta.set_request(false);
  meta.set_simple_app(false);
  meta.mutable_control()->set_cmd(command);
  return meta;
}

}  // namespace

Environment Environment::Read() {
  Environment env;
  std::string role = Need("DMLC_ROLE");
  if (role == "scheduler") env.role = ::kScheduler;
  else if (role == "server") env.role = ::kServer;
  else if (role == "worker") env.role = ::kWorker;
  else throw std::invalid_argument("DMLC_ROLE is \"" + role + "\", want scheduler, server or worker");
  env.servers = Number("DMLC_NUM_SERVER", Need("DMLC_NUM_SERVER"), 1, 10000);
  env.workers = Number("DMLC_NUM_WORKER", Need("DMLC_NUM_WORKER"), 1, 10000);
  env.root_host = Need("DMLC_PS_ROOT_URI");
  env.root_port = Number("DMLC_PS_ROOT_PORT", Need("DMLC_PS_ROOT_PORT"), 1, 65535);
  env.host = env.role == ::kScheduler ? env.root_host : Need("DMLC_NODE_HOST");
  env.port = env.role == ::kScheduler ? env.root_port : Number("PORT", Optional("PORT", "0"), 0, 65535);
  env.timeout_ms = 1000 * Number("PEER_TIMEOUT", Optional("PEER_TIMEOUT", "120"), 1, 86400);
  if (Optional("PS_RESEND", "0") != "0") throw std::invalid_argument("PS_RESEND is set, which this peer does not speak");
  return env;
}

Van::Van(const Environment& env) : env_(env), context_(zmq_ctx_new()) {
  if (context_ == nullptr) throw Failure("no ZeroMQ context");
  receiver_ = zmq_socket(context_, ZMQ_ROUTER);
  if (receiver_ == nullptr) throw Failure(std::string("opening a socket: ") + zmq_strerror(errno));
  SetInt(receiver_, ZMQ_IPV6, env_.host.find(':') != std::string::npos);
  SetInt(receiver_, ZMQ_RCVTIMEO, env_.timeout_ms);
  SetInt(receiver_, ZMQ_LINGER, 0);
  Bind();
}

Van::~Van() {
  // What was sent still leaves: the scheduler's last words above all.
  for (auto& [id, socket] : senders_) zmq_close(socket);
  zmq_close(receiver_);
  zmq_ctx_term(context_);
}

void Van::Bind() {
  std::string endpoint = Endpoint(env_.host, env_.port == 0 ? "*" : std::to_string(env_.port));
  Check(zmq_bind(receiver_, endpoint.c_str()), "listening on " + endpoint);
  char bound[256];
  size_t size = sizeof bound;
  Check(zmq_getsockopt(receiver_, ZMQ_LAST_ENDPOINT, bound, &size), "asking for the port");
  std::string name = bound;
  env_.port = std::stoi(name.substr(name.rfind(':') + 1));
}

void Van::Connect(int id, const std::string& host, int port) {
  void* socket = zmq_socket(context_, ZMQ_DEALER);
  if (socket == nullptr) throw Failure(std::string("opening a socket: ") + zmq_strerror(errno));
  if (senders_.count(id) != 0) zmq_close(senders_[id]);
  senders_[id] = socket;
  SetInt(socket, ZMQ_IPV6, host.find(':') != std::string::npos);
  SetInt(socket, ZMQ_LINGER, 5000);
  if (id_ != -1) {
    std::string name = "ps" + std::to_string(id_);
    Check(zmq_setsockopt(socket, ZMQ_ROUTING_ID, name.data(), name.size()), "naming a socket");
  }
  std::string endpoint = Endpoint(host, std::to_string(port));
  Check(zmq_connect(socket, endpoint.c_str()), "connecting to " + endpoint);
}

void Van::Join() {
  Connect(kSchedulerId, env_.root_host, env_.root_port);
  peer::Meta meta = ControlMeta(kAddNode);
  peer::Node* self = meta.mutable_control()->add_node();
  self->set_role(env_.role);
  self->set_id(kUnset);
  self->set_hostname(env_.host);
  self->set_port(env_.port);
  self->set_is_recovery(false);
  self->set_customer_id(0);
  Send(kSchedulerId, meta);
  while (id_ == -1) {
    Message message = ReceiveAny();
    if (message.meta.control().cmd() == kAddNode) AdoptTable(message.meta);
  }
  Wait(kAll);
}

// AdoptTable finds the own id in the scheduler's table and connects to the
// nodes of other roles, the scheduler anew with the id as name.
void Van::AdoptTable(const peer::Meta& meta) {
  const auto& nodes = meta.control().node();
  for (const peer::Node& node : nodes) {
    if (node.hostname() == env_.host && node.port() == env_.port) id_ = node.id();
  }
  if (id_ == -1) throw Failure("the scheduler's table does not have " + Endpoint(env_.host, std::to_string(env_.port)));
  for (const peer::Node& node : nodes) {
    if (node.role() != env_.role) Connect(node.id(), node.hostname(), node.port());
  }
}

void Van::Arrive(int group) {
  peer::Meta meta = ControlMeta(kBarrier);
  meta.set_request(true);
  meta.set_app_id(0);
  meta.set_customer_id(0);
  meta.mutable_control()->set_barrier_group(group);
  Send(kSchedulerId, meta);
}

void Van::Wait(int group) {
  Arrive(group);
  for (;;) {
    Message message = ReceiveAny();
    if (message.IsRelease()) return;
    if (!message.IsControl()) early_.push_back(std::move(message));
  }
}

void Van::Send(int to, const peer::Meta& meta, std::vector<Frame> data) {
  auto found = senders_.find(to);
  if (found == senders_.end()) throw Failure("no connection to node " + std::to_string(to));
  peer::Meta stamped = meta;
  if (!stamped.has_timestamp()) stamped.set_timestamp(timestamp_++);
  size_t size = 0;
  for (const Frame& frame : data) size += frame.size();
  stamped.set_data_size(static_cast<int>(size));
  // PS-lite writes these in every message.
  if (!stamped.has_customer_id()) stamped.set_customer_id(0);
  if (!stamped.has_pull()) stamped.set_pull(false);
  if (!stamped.has_priority()) stamped.set_priority(0);
  Frame head = Frame::Copy(stamped.SerializeAsString());
  std::string what = "sending to node " + std::to_string(to);
  Check(zmq_msg_send(head.raw(), found->second, data.empty() ? 0 : ZMQ_SNDMORE), what);
  for (size_t i = 0; i < data.size(); i++) {
    Check(zmq_msg_send(data[i].raw(), found->second, i + 1 < data.size() ? ZMQ_SNDMORE : 0), what);
  }
}

Message Van::ReceiveAny() {
  Message message;
  bool more = true;
  for (int i = 0; more; i++) {
    Frame frame;
    if (zmq_msg_recv(frame.raw(), receiver_, 0) == -1) {
      if (errno == EINTR) { i--; continue; }
      if (errno == EAGAIN) throw Failure("nothing came for " + std::to_string(env_.timeout_ms / 1000) + " s");
      throw Failure(std::string("receiving: ") + zmq_strerror(errno));
    }
    more = frame.more();
    if (i == 0) {
      std::string name(static_cast<const char*>(frame.data()), frame.size());
      if (name.size() > 2 && name.compare(0, 2, "ps") == 0) message.sender = std::atoi(name.c_str() + 2);
    } else if (i == 1) {
      if (!message.meta.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
        throw Failure("a meta frame of " + std::to_string(frame.size()) + " bytes is not readable");
      }
    } else {
      message.data.push_back(std::move(frame));
    }
  }
  return message;
}

void Van::Idle(int milliseconds) {
  zmq_pollitem_t item{receiver_, 0, ZMQ_POLLIN, 0};
  if (zmq_poll(&item, 1, milliseconds) == -1 && errno != EINTR) throw Failure(std::string("waiting: ") + zmq_strerror(errno));
  if (item.revents != 0) early_.push_back(ReceiveAny());
}

Message Van::Receive() {
  if (!early_.empty()) {
    Message message = std::move(early_.front());
    early_.pop_front();
    return message;
  }
  for (;;) {
    Message message = ReceiveAny();
    if (!message.IsControl() || message.IsRelease()) return message;
  }
}
