// The scheduler's part of the van: it gives out ids and counts barriers.
#include <iostream>

#include "van.hpp"

void Van::Serve() {
  id_ = kSchedulerId;
  size_t expected = env_.servers + env_.workers;
  while (nodes_.size() < expected) {
    Message message = ReceiveAny();
    if (message.meta.control().cmd() == kAddNode) Admit(message.meta);
  }
  AnswerTable();
  // The scheduler waits at the first barrier of all and at the last; others
  // come and go between them.
  for (int i = 0; i < 2; i++) {
    released_ = false;
    barriers_[kAll]++;
    while (!released_) {
      Message message = ReceiveAny();
      int command = message.meta.control().cmd();
      if (command == kBarrier && message.meta.request()) CountBarrier(message);
      if (command == kAddNode) std::cerr << "peer: a node too many wants to join; ignored\n";
    }
  }
}

void Van::Admit(const peer::Meta& meta) {
  if (meta.control().node_size() != 1) throw Failure("a registration of " + std::to_string(meta.control().node_size()) + " nodes");
  peer::Node node = meta.control().node(0);
  int same = 0;
  for (const peer::Node& other : nodes_) same += other.role() == node.role();
  if (same >= (node.role() == kServer ? env_.servers : env_.workers)) {
    throw Failure("more nodes of role " + std::to_string(node.role()) + " than the job has");
  }
  node.set_id((node.role() == kServer ? 8 : 9) + 2 * same);
  nodes_.push_back(node);
}

void Van::AnswerTable() {
  peer::Meta meta;
  meta.set_head(kUnset);
  meta.set_push(false);
  meta.set_request(false);
  meta.set_simple_app(false);
  peer::Control* control = meta.mutable_control();
  control->set_cmd(kAddNode);
  for (const peer::Node& node : nodes_) *control->add_node() = node;
  peer::Node* self = control->add_node();
  self->set_role(kScheduler);
  self->set_id(kSchedulerId);
  self->set_hostname(env_.host);
  self->set_port(env_.port);
  self->set_is_recovery(false);
  self->set_customer_id(0);
  for (const peer::Node& node : nodes_) Connect(node.id(), node.hostname(), node.port());
  for (const peer::Node& node : nodes_) Send(node.id(), meta);
}

int Van::Members(int group) const {
  return (group & kSchedulerGroup ? 1 : 0) + (group & kServerGroup ? env_.servers : 0) + (group & kWorkerGroup ? env_.workers : 0);
}

void Van::CountBarrier(const Message& message) {
  int group = message.meta.control().barrier_group();
  if (++barriers_[group] < Members(group)) return;
  barriers_[group] = 0;
  peer::Meta meta;
  meta.set_head(kUnset);
  meta.set_push(false);
  meta.set_request(false);
  meta.set_simple_app(false);
  meta.set_app_id(message.meta.app_id());
  meta.set_customer_id(message.meta.customer_id());
  meta.mutable_control()->set_cmd(kBarrier);
  meta.mutable_control()->set_barrier_group(0);
  for (const peer::Node& node : nodes_) {
    if (group & (node.role() == kServer ? kServerGroup : kWorkerGroup)) Send(node.id(), meta);
  }
  if (group == kAll) released_ = true;
}
