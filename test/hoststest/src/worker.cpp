// The worker: pushes whole numbers, whose sums are known, and pulls them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "roles.hpp"

namespace {

// What four workers add to one value in so many rounds is below 2^24, up to which a
// float counts.
constexpr int kMostRounds = 230000;

using Keys = std::shared_ptr<std::vector<uint64_t>>;
using Values = std::shared_ptr<std::vector<float>>;
using Lens = std::shared_ptr<std::vector<int32_t>>;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Worker {
 public:
  Worker(Van& van, const Options& options) : van_(van), options_(options) {
    auto keys = std::make_shared<std::vector<uint64_t>>(options.keys);
    lens_ = std::make_shared<std::vector<int32_t>>();
    first_.assign(1, 0);
    for (size_t i = 0; i < options.keys; i++) {
      size_t number = Number(i);
      (*keys)[i] = options.space == 0 ? number : UINT64_MAX / options.space * number;
      int length = options.lens ? number % 4 + 1 : options.width;
      if (options.lens) lens_->push_back(length);
      first_.push_back(first_.back() + length);
    }
    keys_ = keys;
    for (int s = 0; s <= van.env().servers; s++) {
      uint64_t bound = van.FirstKey(s);
      cuts_.push_back(std::lower_bound(keys->begin(), keys->end(), bound) - keys->begin());
    }
    cuts_.back() = keys->size();
    pulled_.resize(first_.back());
  }

  // Count pushes its numbers round by round, checks that what it pulls never
  // falls, and at last, when all workers are done, that the sums are right. With
  // --count-while each worker makes as many rounds as it comes to.
  size_t Count() {
    auto values = std::make_shared<std::vector<float>>(first_.back());
    for (size_t i = 0; i < options_.keys; i++) {
      for (size_t j = first_[i]; j < first_[i + 1]; j++) (*values)[j] = Step(van_.rank(), Number(i));
    }
    size_t wrong = 0;
    std::vector<float> before(pulled_.size());
    double said = Now();
    int round = 1;
    for (; round <= options_.rounds || GoesOn(); round++) {
      if (round > kMostRounds) throw Failure("too many rounds for sums that are exact");
      if (options_.pushpull) Request(true, true, values);
      else Request(true, false, values), Request(false, true, nullptr);
      for (size_t j = 0; j < pulled_.size(); j++) {
        wrong += pulled_[j] < before[j] + (*values)[j];
      }
      before = pulled_;
      if (Now() - said >= 0.5 || round == options_.rounds) {
        std::fprintf(stderr, "peer: round %d of %d\n", round, options_.rounds);
        said = Now();
      }
    }
    TellRounds(round - 1);
    van_.Wait(kWorkerGroup);
    HearRounds();
    Request(false, true, nullptr);
    for (size_t i = 0; i < options_.keys; i++) {
      for (size_t j = first_[i]; j < first_[i + 1]; j++) wrong += pulled_[j] != Expected(Number(i));
    }
    return wrong;
  }

  // Bench pushes and pulls everything as fast as it can, one request at a time.
  void Bench() {
    auto values = std::make_shared<std::vector<float>>(first_.back(), 1.0f);
    for (int round = 0; round < options_.rounds; round++) {
      Request(true, false, values);
      Request(false, true, nullptr);
    }
  }

  void Print(size_t wrong) const {
    std::printf("{\"role\":\"worker\",\"rank\":%d,\"mode\":\"%s\",\"keys\":%zu,\"values\":%zu,\"pushes\":%zu,\"pulls\":%zu,"
                "\"wrong\":%zu,\"push_seconds\":%s,\"pull_seconds\":%s}\n",
                van_.rank(), options_.mode.c_str(), options_.keys, pulled_.size(), push_seconds_.size(),
                pulls_, wrong, List(push_seconds_).c_str(), List(pull_seconds_).c_str());
  }

  // WriteAccess writes a line for each key: key, pushes, bytes of values
  // pushed, pulls, bytes of values pulled.
  void WriteAccess(const std::string& path) const {
    std::ofstream out(path);
    for (size_t i = 0; i < options_.keys; i++) {
      size_t bytes = 4 * (first_[i + 1] - first_[i]);
      out << (*keys_)[i] << ' ' << push_seconds_.size() << ' ' << push_seconds_.size() * bytes << ' ' << pulls_ << ' '
          << pulls_ * bytes << '\n';
    }
    out.close();
    if (!out) throw Failure("writing " + path);
  }

 private:
  size_t Number(size_t i) const { return options_.shift * van_.rank() + i; }

  // Step is what the worker of that rank adds to a key's values in a round.
  static float Step(int rank, size_t number) { return static_cast<float>((rank + 1) * (number % 7 + 1)); }

  bool GoesOn() const { return !options_.goes_on.empty() && std::ifstream(options_.goes_on).good(); }

  // TellRounds leaves beside the file how many rounds this worker made; HearRounds
  // reads what all have left.
  void TellRounds(int made) const {
    if (options_.goes_on.empty()) return;
    std::ofstream out(RoundsOf(van_.rank()));
    out << made << '\n';
    out.close();
    if (!out) throw Failure("writing " + RoundsOf(van_.rank()));
  }

  void HearRounds() {
    rounds_.assign(van_.env().workers, options_.rounds);
    if (options_.goes_on.empty()) return;
    for (int rank = 0; rank < van_.env().workers; rank++) {
      if (!(std::ifstream(RoundsOf(rank)) >> rounds_[rank])) throw Failure("reading " + RoundsOf(rank));
    }
  }

  std::string RoundsOf(int rank) const { return options_.goes_on + ".rounds" + std::to_string(rank); }

  float Expected(size_t number) const {
    float sum = 0;
    for (int rank = 0; rank < van_.env().workers; rank++) {
      size_t first = options_.shift * rank;
      if (number >= first && number < first + options_.keys) sum += rounds_[rank] * Step(rank, number);
    }
    return sum;
  }

  // Request sends a push, a pull or both to every server that has keys of
  // ours, and waits for the answers.
  void Request(bool push, bool pull, const Values& values) {
    double start = Now();
    int timestamp = timestamp_++;
    int outstanding = 0;
    for (int s = 0; s < van_.env().servers; s++) {
      size_t from = cuts_[s], to = cuts_[s + 1];
      if (from == to) continue;
      peer::Meta meta;
      meta.set_head(0);
      meta.set_app_id(0);
      meta.set_customer_id(0);
      meta.set_timestamp(timestamp);
      meta.set_request(true);
      meta.set_push(push);
      meta.set_pull(pull);
      meta.set_simple_app(false);
      meta.set_priority(0);
      meta.add_data_type(kUint64);
      meta.add_data_type(kFloat);
      std::vector<Frame> data;
      data.push_back(Frame::Of(keys_, from, to - from));
      data.push_back(push ? Frame::Of(values, first_[from], first_[to] - first_[from]) : Frame());
      if (options_.lens) {
        data.push_back(Frame::Of(lens_, from, to - from));
        meta.add_data_type(kInt32);
      }
      van_.Send(Van::ServerId(s), meta, std::move(data));
      outstanding++;
    }
    while (outstanding-- > 0) Accept(van_.Receive(), timestamp, push, pull);
    if (push) push_seconds_.push_back(Now() - start);
    if (pull) pulls_++;
    if (pull && !push) pull_seconds_.push_back(Now() - start);
  }

  void Accept(Message answer, int timestamp, bool push, bool pull) {
    const peer::Meta& meta = answer.meta;
    std::string who = "an answer of node " + std::to_string(answer.sender);
    if (meta.request() || meta.timestamp() != timestamp || meta.push() != push || meta.pull() != pull) {
      throw Failure(who + " belongs to no request of ours: " + meta.ShortDebugString());
    }
    if (!pull) {
      if (!answer.data.empty()) throw Failure(who + " to a push has data");
      return;
    }
    if (answer.data.size() < 2) throw Failure(who + " to a pull has no data");
    int server = (answer.sender - 8) / 2;
    if (server < 0 || server >= van_.env().servers) throw Failure(who + ", which is no server");
    auto keys = answer.data[0].As<uint64_t>("keys");
    size_t from = cuts_[server], to = cuts_[server + 1];
    if (keys.size != to - from || !std::equal(keys.begin(), keys.end(), keys_->begin() + from)) {
      throw Failure(who + " has other keys than were asked for");
    }
    auto values = answer.data[1].As<float>("values");
    if (values.size != first_[to] - first_[from]) {
      throw Failure(who + " has " + std::to_string(values.size) + " values, want " + std::to_string(first_[to] - first_[from]));
    }
    std::copy(values.begin(), values.end(), pulled_.begin() + first_[from]);
  }

  static std::string List(const std::vector<double>& seconds) {
    std::string text = "[";
    for (double s : seconds) text += (text.size() > 1 ? "," : "") + std::to_string(s);
    return text + "]";
  }

  Van& van_;
  const Options& options_;
  Keys keys_;
  Lens lens_;
  std::vector<size_t> first_;  // of key i's values, and the end
  std::vector<size_t> cuts_;   // of server s's keys, and the end
  std::vector<float> pulled_;
  std::vector<int> rounds_;  // of each worker
  int timestamp_ = 0;
  size_t pulls_ = 0;
  std::vector<double> push_seconds_, pull_seconds_;
};

}  // namespace

int RunWorker(const Environment& env, const Options& options) {
  Van van(env);
  van.Join();
  Worker worker(van, options);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.wait_ms));
  size_t wrong = 0;
  if (options.mode == "bench") worker.Bench();
  else wrong = worker.Count();
  van.Wait(kAll);
  worker.Print(wrong);
  if (!options.access.empty()) worker.WriteAccess(options.access);
  if (wrong != 0) throw Failure(std::to_string(wrong) + " values are wrong");
  return 0;
}
