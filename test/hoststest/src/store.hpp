// A server's parameters: values by key, found by open addressing.
#pragma once

#include <cstdint>
#include <vector>

class Store {
 public:
  struct Entry {
    uint64_t key;
    uint64_t first;  // of its values
    uint32_t length;
  };

  Store() : table_(1 << 16) {}

  // Find returns the key's entry; one that is new gets length zeros. The
  // pointer holds until the next call. Keys come in the same order again and
  // again, so the entry after the one found last is looked at first.
  const Entry* Find(uint64_t key, uint32_t length) {
    if (next_ < entries_.size() && entries_[next_].key == key) return &entries_[next_++];
    if (2 * entries_.size() >= table_.size()) Grow();
    uint32_t& place = Place(key);
    if (place == 0) {
      entries_.push_back({key, values_.size(), length});
      values_.resize(values_.size() + length);
      place = static_cast<uint32_t>(entries_.size());
    }
    next_ = place;
    return &entries_[place - 1];
  }

  float* Values(const Entry* entry) { return values_.data() + entry->first; }
  size_t size() const { return entries_.size(); }

  double Sum() const {
    double sum = 0;
    for (float value : values_) sum += value;
    return sum;
  }

 private:
  // Place is where the table has the key's number plus 1, or 0 for none.
  uint32_t& Place(uint64_t key) {
    size_t mask = table_.size() - 1;
    size_t at = (((key ^ (key >> 32)) * 0x9e3779b97f4a7c15u) >> 20) & mask;
    while (table_[at] != 0 && entries_[table_[at] - 1].key != key) at = (at + 1) & mask;
    return table_[at];
  }

  void Grow() {
    table_.assign(table_.size() * 2, 0);
    for (size_t i = 0; i < entries_.size(); i++) Place(entries_[i].key) = static_cast<uint32_t>(i + 1);
  }

  std::vector<Entry> entries_;   // in the order in which keys came
  std::vector<uint32_t> table_;
  std::vector<float> values_;
  size_t next_ = 0;
};
