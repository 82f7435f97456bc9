#include "sync.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

namespace {

using Values = std::shared_ptr<std::vector<float>>;

// Parameter is what a server has of one key, or in mode positions of all its keys.
struct Parameter {
  std::vector<uint64_t> keys;
  Values weights;
  std::vector<float> merged;                          // of the pushes that wait
  std::vector<std::pair<int, peer::Meta>> waiting;    // their senders and answers
};

class SyncServer {
 public:
  SyncServer(Van& van, const Options& options) : van_(van), options_(options) {}

  void Run() {
    van_.Arrive(kAll);
    for (;;) {
      Message message = van_.Receive();
      if (message.IsRelease()) break;
      if (message.meta.request()) Answer(message);
    }
    for (const auto& [key, parameter] : parameters_) {
      if (!parameter.waiting.empty()) throw Failure("pushes of key " + std::to_string(key) + " wait for other workers at the end");
    }
  }

  void Print() const {
    double sum = 0;
    size_t keys = 0, values = 0;
    for (const auto& [key, parameter] : parameters_) {
      keys += parameter.keys.size();
      values += parameter.weights->size();
      for (float w : *parameter.weights) sum += w;
    }
    std::printf("{\"role\":\"server\",\"rank\":%d,\"pushes\":%lu,\"pulls\":%lu,\"keys\":%zu,\"values_pulled\":%zu,\"sum\":%.17g}\n",
                van_.rank(), pushes_, pulls_, keys, values, sum);
  }

 private:
  void Answer(Message& request) {
    peer::Meta meta = request.meta;
    meta.set_request(false);
    meta.clear_data_type();
    meta.clear_data_size();
    if (meta.push() == meta.pull()) throw Failure("a request neither pushes nor pulls, or both");
    if (request.data.size() < 2) throw Failure("a request without keys and values");
    auto keys = request.data[0].As<uint64_t>("keys");
    if (keys.size == 0) throw Failure("a request without keys");
    if (options_.mode == "kvstore" && keys.size != 1) throw Failure("check failed: " + std::to_string(keys.size) + " keys in a request, want 1");
    Parameter& parameter = parameters_[keys[0]];
    if (!parameter.keys.empty() && !std::equal(keys.begin(), keys.end(), parameter.keys.begin(), parameter.keys.end())) {
      throw Failure("check failed: " + std::to_string(keys.size) + " keys, by position there are " + std::to_string(parameter.keys.size()));
    }
    if (meta.push()) Push(request, keys, parameter, std::move(meta));
    else Pull(request, parameter, std::move(meta));
  }

  void Push(Message& request, View<uint64_t> keys, Parameter& parameter, peer::Meta meta) {
    auto values = request.data[1].As<float>("values");
    pushes_++;
    if (parameter.keys.empty()) {  // initial weights
      parameter.keys.assign(keys.begin(), keys.end());
      parameter.weights = std::make_shared<std::vector<float>>(values.begin(), values.end());
      van_.Send(request.sender, meta);
      return;
    }
    if (values.size != parameter.weights->size()) {
      throw Failure("check failed: a push has " + std::to_string(values.size) + " values, the weights " + std::to_string(parameter.weights->size()));
    }
    parameter.merged.resize(values.size);
    for (size_t i = 0; i < values.size; i++) parameter.merged[i] += values[i];
    parameter.waiting.emplace_back(request.sender, std::move(meta));
    if (parameter.waiting.size() < static_cast<size_t>(van_.env().workers)) return;
    auto next = std::make_shared<std::vector<float>>(*parameter.weights);
    for (size_t i = 0; i < next->size(); i++) (*next)[i] += parameter.merged[i];
    parameter.weights = next;  // answers to pulls may still read the old ones
    parameter.merged.assign(next->size(), 0);
    for (auto& [sender, answer] : parameter.waiting) van_.Send(sender, answer);
    parameter.waiting.clear();
  }

  void Pull(Message& request, Parameter& parameter, peer::Meta meta) {
    if (parameter.keys.empty()) throw Failure("check failed: a pull of weights that nobody has initialised");
    pulls_++;
    std::vector<Frame> data;
    data.push_back(request.data[0].Share());
    data.push_back(Frame::Of(parameter.weights));
    meta.add_data_type(kUint64);
    meta.add_data_type(kFloat);
    if (request.data.size() == 3) {
      data.push_back(Frame::Of(std::make_shared<std::vector<int32_t>>(1, parameter.weights->size())));
      meta.add_data_type(kInt32);
    }
    van_.Send(request.sender, meta, std::move(data));
  }

  Van& van_;
  const Options& options_;
  std::map<uint64_t, Parameter> parameters_;  // by the first key
  uint64_t pushes_ = 0, pulls_ = 0;
};

class SyncWorker {
 public:
  SyncWorker(Van& van, const Options& options) : van_(van), options_(options) {
    size_t space = options.space == 0 ? options.keys : options.space;
    for (size_t i = 0; i < options.keys; i++) {
      uint64_t key = UINT64_MAX / space * i;
      int server = 0;
      while (server + 1 < van.env().servers && key >= van.FirstKey(server + 1)) server++;
      if (parts_.empty() || options.mode == "kvstore" || parts_.back().server != server) parts_.push_back({server, {}, {}, i});
      parts_.back().keys.push_back(key);
    }
    for (Part& part : parts_) part.pulled.resize(part.keys.size() * options.width);
  }

  // Train returns how many weights were not what they must be: the initial ones
  // before the first gradient, and the last ones.
  size_t Train() {
    if (van_.rank() == 0) {
      for (Part& part : parts_) Push(part, [&](size_t i) { return Initial(part, i); });
    }
    van_.Wait(kWorkerGroup);
    size_t wrong = 0;
    for (Part& part : parts_) {
      Pull(part);
      for (size_t i = 0; i < part.pulled.size(); i++) wrong += part.pulled[i] != Initial(part, i);
    }
    if (wrong != 0) std::fprintf(stderr, "peer: %zu initial weights are wrong\n", wrong);
    for (int round = 1; Another(round); round++) {
      for (Part& part : parts_) Push(part, [&](size_t i) { return Gradient(van_.rank(), i, round); });
      for (Part& part : parts_) Pull(part);
      if (round % 50 == 0 || round == last_) std::fprintf(stderr, "peer: round %d\n", round);
    }
    if (!options_.hold.empty() || !options_.goes_on.empty()) {
      AwaitFile();
      for (Part& part : parts_) Push(part, [](size_t) { return 0.0f; });
      van_.Wait(kWorkerGroup);
    }
    for (Part& part : parts_) {
      Pull(part);
      for (size_t i = 0; i < part.pulled.size(); i++) wrong += part.pulled[i] != Last(part, i);
    }
    return wrong;
  }

  void Print(size_t wrong) const {
    std::printf("{\"role\":\"worker\",\"rank\":%d,\"mode\":\"%s\",\"keys\":%zu,\"values\":%zu,\"pushes\":%zu,\"pulls\":%zu,\"wrong\":%zu}\n",
                van_.rank(), options_.mode.c_str(), options_.keys, options_.keys * options_.width, pushes_, pulls_, wrong);
  }

 private:
  // Part is the keys of one request.
  struct Part {
    int server;
    std::vector<uint64_t> keys;
    std::vector<float> pulled;
    size_t first;  // number of the first key
  };

  float Initial(const Part& part, size_t i) const {
    size_t number = part.first * options_.width + i;
    return static_cast<float>(number % 1009) - 500;
  }

  // Gradient is a whole number: few are large, as in real ones.
  static float Gradient(int rank, size_t i, int round) {
    size_t draw = (i * 2654435761u + round * 40503u + rank * 97u) % 1000;
    return draw < 10 ? 100.0f * (draw + 1) : static_cast<float>(draw % 5) - 2;
  }

  float Last(const Part& part, size_t i) const {
    float sum = Initial(part, i);
    for (int round = 1; round <= last_; round++) {
      for (int rank = 0; rank < van_.env().workers; rank++) sum += Gradient(rank, i, round);
    }
    return sum;
  }

  // Another reports whether a round is to be made. With --count-while the first worker says which
  // one is the last, before it pushes in that one: until then no other worker can end it, as servers
  // wait for the pushes of all.
  bool Another(int round) {
    struct stat info;
    if (last_ == 0 && van_.rank() == 0 && round >= options_.rounds && stat(options_.goes_on.c_str(), &info) != 0) {
      last_ = round;
      const std::string name = options_.goes_on + ".last";
      std::ofstream(name + ".new") << last_ << std::endl;
      if (std::rename((name + ".new").c_str(), name.c_str()) != 0) throw Failure("writing " + name);
    } else if (last_ == 0) {
      std::ifstream(options_.goes_on + ".last") >> last_;
    }
    return last_ == 0 || round <= last_;
  }

  void AwaitFile() {
    if (options_.hold.empty()) return;
    std::fprintf(stderr, "peer: waits for %s\n", options_.hold.c_str());
    struct stat info;
    while (stat(options_.hold.c_str(), &info) != 0) van_.Idle(10);
  }

  template <typename Of>
  void Push(const Part& part, Of of) {
    auto values = std::make_shared<std::vector<float>>(part.pulled.size());
    for (size_t i = 0; i < values->size(); i++) (*values)[i] = of(i);
    Request(part, true, Frame::Of(values));
    pushes_++;
  }

  void Pull(Part& part) {
    Message answer = Request(part, false, Frame());
    if (answer.data.size() < 2) throw Failure("an answer to a pull has no data");
    auto values = answer.data[1].As<float>("values");
    if (values.size != part.pulled.size()) throw Failure("an answer has " + std::to_string(values.size) + " values, want " + std::to_string(part.pulled.size()));
    std::copy(values.begin(), values.end(), part.pulled.begin());
    pulls_++;
  }

  Message Request(const Part& part, bool push, Frame values) {
    peer::Meta meta;
    meta.set_head(0);
    meta.set_app_id(0);
    meta.set_customer_id(0);
    meta.set_timestamp(timestamp_);
    meta.set_request(true);
    meta.set_push(push);
    meta.set_pull(!push);
    meta.set_simple_app(false);
    meta.set_priority(0);
    meta.add_data_type(kUint64);
    meta.add_data_type(kFloat);
    std::vector<Frame> data;
    data.push_back(Frame::Of(std::make_shared<std::vector<uint64_t>>(part.keys)));
    data.push_back(std::move(values));
    if (options_.mode == "kvstore") {
      data.push_back(Frame::Of(std::make_shared<std::vector<int32_t>>(1, options_.width)));
      meta.add_data_type(kInt32);
    }
    van_.Send(Van::ServerId(part.server), meta, std::move(data));
    Message answer = van_.Receive();
    if (answer.meta.request() || answer.meta.timestamp() != timestamp_ || answer.meta.push() != push) {
      throw Failure("an answer belongs to no request of ours: " + answer.meta.ShortDebugString());
    }
    timestamp_++;
    return answer;
  }

  Van& van_;
  const Options& options_;
  int last_ = options_.goes_on.empty() ? options_.rounds : 0;  // the last round; 0: not known yet
  std::vector<Part> parts_;
  int timestamp_ = 0;
  size_t pushes_ = 0, pulls_ = 0;
};

}  // namespace

bool IsSync(const Options& options) { return options.mode == "kvstore" || options.mode == "positions"; }

int RunSyncServer(const Environment& env, const Options& options) {
  Van van(env);
  van.Join();
  SyncServer server(van, options);
  server.Run();
  server.Print();
  return 0;
}

int RunSyncWorker(const Environment& env, const Options& options) {
  Van van(env);
  van.Join();
  SyncWorker worker(van, options);
  size_t wrong = worker.Train();
  van.Wait(kAll);
  worker.Print(wrong);
  if (wrong != 0) throw Failure(std::to_string(wrong) + " weights are wrong");
  return 0;
}
