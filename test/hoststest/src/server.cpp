// The server: adds what is pushed to what it has.
#include <cstdio>

#include "roles.hpp"
#include "store.hpp"

namespace {

struct Tally {
  uint64_t pushes = 0, pulls = 0, keys_pushed = 0, keys_pulled = 0, values_pushed = 0, values_pulled = 0;
};

// Server answers requests until all nodes are at the last barrier.
class Server {
 public:
  Server(Van& van, bool keep) : van_(van), keep_(keep) {}

  void Run() {
    van_.Arrive(kAll);
    for (;;) {
      Message message = van_.Receive();
      if (message.IsRelease()) return;
      if (message.meta.request()) Answer(message);
    }
  }

  void Print() const {
    std::printf(
        "{\"role\":\"server\",\"rank\":%d,\"pushes\":%lu,\"pulls\":%lu,\"keys_pushed\":%lu,\"keys_pulled\":%lu,"
        "\"values_pushed\":%lu,\"values_pulled\":%lu,\"keys\":%zu,\"sum\":%.17g}\n",
        van_.rank(), tally_.pushes, tally_.pulls, tally_.keys_pushed, tally_.keys_pulled, tally_.values_pushed,
        tally_.values_pulled, store_.size(), store_.Sum());
  }

 private:
  void Answer(Message& request) {
    peer::Meta meta;
    meta.set_head(request.meta.head());
    meta.set_app_id(request.meta.app_id());
    meta.set_timestamp(request.meta.timestamp());
    meta.set_customer_id(request.meta.customer_id());
    meta.set_push(request.meta.push());
    meta.set_pull(request.meta.pull());
    meta.set_request(false);
    meta.set_simple_app(request.meta.simple_app());
    meta.set_priority(request.meta.priority());
    if (request.meta.simple_app()) {
      van_.Send(request.sender, meta);
      return;
    }
    if (request.data.size() < 2 || request.data.size() > 3) {
      throw Failure("a request of node " + std::to_string(request.sender) + " has " + std::to_string(request.data.size()) + " data frames");
    }
    if (request.meta.push()) Push(request);
    std::vector<Frame> data;
    if (request.meta.pull()) data = Pull(request, meta);
    van_.Send(request.sender, meta, std::move(data));
  }

  void Push(Message& request) {
    auto keys = request.data[0].As<uint64_t>("keys");
    auto values = request.data[1].As<float>("values");
    View<int32_t> lens;
    if (request.data.size() == 3) lens = request.data[2].As<int32_t>("lens");
    if (lens.size != 0 ? lens.size != keys.size : keys.size != 0 && values.size % keys.size != 0) {
      throw Failure("a push of " + std::to_string(keys.size) + " keys has " + std::to_string(values.size) + " values and " + std::to_string(lens.size) + " lens");
    }
    tally_.pushes++;
    tally_.keys_pushed += keys.size;
    tally_.values_pushed += values.size;
    if (!keep_) return;
    size_t at = 0;
    size_t width = keys.size == 0 ? 0 : values.size / keys.size;
    for (size_t i = 0; i < keys.size; i++) {
      size_t length = lens.size != 0 ? lens[i] : width;
      if (length > values.size - at) throw Failure("the lens of a push name more values than it has");
      const Store::Entry* entry = store_.Find(keys[i], length);
      if (entry->length != length) throw Failure("key " + std::to_string(keys[i]) + " changes its length");
      float* sum = store_.Values(entry);
      for (size_t j = 0; j < length; j++) sum[j] += values[at + j];
      at += length;
    }
  }

  // Pull returns the frames of the answer: the request's keys again, their
  // values, and lens where the request has them.
  std::vector<Frame> Pull(Message& request, peer::Meta& meta) {
    auto keys = request.data[0].As<uint64_t>("keys");
    auto values = std::make_shared<std::vector<float>>();
    auto lens = std::make_shared<std::vector<int32_t>>();
    bool with_lens = request.data.size() == 3;
    values->reserve(keys.size);
    if (!keep_) values->resize(keys.size);
    for (size_t i = 0; keep_ && i < keys.size; i++) {
      const Store::Entry* entry = store_.Find(keys[i], 1);
      const float* from = store_.Values(entry);
      values->insert(values->end(), from, from + entry->length);
      if (with_lens) lens->push_back(entry->length);
    }
    tally_.pulls++;
    tally_.keys_pulled += keys.size;
    tally_.values_pulled += values->size();
    std::vector<Frame> data;
    data.push_back(request.data[0].Share());
    data.push_back(Frame::Of(values));
    meta.add_data_type(kUint64);
    meta.add_data_type(kFloat);
    if (with_lens) {
      data.push_back(Frame::Of(lens));
      meta.add_data_type(kInt32);
    }
    return data;
  }

  Van& van_;
  bool keep_;
  Store store_;
  Tally tally_;
};

}  // namespace

int RunServer(const Environment& env, const Options& options) {
  Van van(env);
  van.Join();
  Server server(van, options.keep);
  server.Run();
  server.Print();
  return 0;
}
