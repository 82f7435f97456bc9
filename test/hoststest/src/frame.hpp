// One frame of a ZeroMQ message: bytes that are received, shared or sent
// without a copy.
#pragma once

#include <zmq.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Failure is what ends a peer with exit code 1 and a message.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// View is a part of somebody else's array.
template <typename T>
struct View {
  const T* data = nullptr;
  size_t size = 0;
  const T& operator[](size_t i) const { return data[i]; }
  const T* begin() const { return data; }
  const T* end() const { return data + size; }
};

class Frame {
 public:
  Frame() { zmq_msg_init(&msg_); }
  Frame(Frame&& other) noexcept : Frame() { zmq_msg_move(&msg_, &other.msg_); }
  Frame& operator=(Frame&& other) noexcept {
    zmq_msg_move(&msg_, &other.msg_);
    return *this;
  }
  ~Frame() { zmq_msg_close(&msg_); }

  // Copy holds a copy of the bytes.
  static Frame Copy(const std::string& bytes) {
    Frame frame;
    if (zmq_msg_init_size(&frame.msg_, bytes.size()) != 0) throw Failure("out of memory for a frame");
    std::memcpy(zmq_msg_data(&frame.msg_), bytes.data(), bytes.size());
    return frame;
  }

  // Of holds count elements of the vector from first on, and the vector itself
  // until the frame has left.
  template <typename T>
  static Frame Of(std::shared_ptr<std::vector<T>> elements, size_t first, size_t count) {
    Frame frame;
    if (count == 0) return frame;
    auto* keep = new std::shared_ptr<std::vector<T>>(std::move(elements));
    auto release = [](void*, void* kept) { delete static_cast<std::shared_ptr<std::vector<T>>*>(kept); };
    zmq_msg_init_data(&frame.msg_, (*keep)->data() + first, count * sizeof(T), release, keep);
    return frame;
  }

  template <typename T>
  static Frame Of(std::shared_ptr<std::vector<T>> elements) {
    size_t count = elements->size();
    return Of(std::move(elements), 0, count);
  }

  // Share is another frame with the same bytes.
  Frame Share() {
    Frame frame;
    zmq_msg_copy(&frame.msg_, &msg_);
    return frame;
  }

  // As is the content as elements; a size that is no multiple of theirs is
  // the sender's fault.
  template <typename T>
  View<T> As(const char* what) {
    if (size() % sizeof(T) != 0) {
      throw Failure(std::string("a frame of ") + what + " has " + std::to_string(size()) + " bytes");
    }
    return {static_cast<const T*>(zmq_msg_data(&msg_)), size() / sizeof(T)};
  }

  size_t size() const { return zmq_msg_size(&msg_); }
  const void* data() { return zmq_msg_data(&msg_); }
  bool more() const { return zmq_msg_more(&msg_) != 0; }
  zmq_msg_t* raw() { return &msg_; }

 private:
  zmq_msg_t msg_;
};
