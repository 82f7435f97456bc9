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
    bool used;
  };

  Store() : table_(1 << 16) {}

  // Find returns the key's entry; one that is new gets length zeros. The
  // pointer holds until the next call.
  Entry* Find(uint64_t key, uint32_t length) {
    if (2 * used_ >= table_.size()) Grow();
    Entry* entry = Place(table_, key);
    if (!entry->used) {
      *entry = {key, values_.size(), length, true};
      values_.resize(values_.size() + length);
      used_++;
    }
    return entry;
  }

  float* Values(const Entry* entry) { return values_.data() + entry->first; }
  size_t size() const { return used_; }

  double Sum() const {
    double sum = 0;
    for (float value : values_) sum += value;
    return sum;
  }

 private:
  static Entry* Place(std::vector<Entry>& table, uint64_t key) {
    size_t mask = table.size() - 1;
    uint64_t mixed = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15u;
    size_t at = (mixed >> 20) & mask;
    while (table[at].used && table[at].key != key) at = (at + 1) & mask;
    return &table[at];
  }

  void Grow() {
    std::vector<Entry> larger(table_.size() * 2);
    for (const Entry& entry : table_) {
      if (entry.used) *Place(larger, entry.key) = entry;
    }
    table_.swap(larger);
  }

  std::vector<Entry> table_;
  std::vector<float> values_;
  size_t used_ = 0;
};
