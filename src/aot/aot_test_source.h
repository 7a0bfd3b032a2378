// SPDX-License-Identifier: MIT
//
// For tests: a source with made-up methods.
#ifndef STACKPIPE_AOT_AOT_TEST_SOURCE_H_
#define STACKPIPE_AOT_AOT_TEST_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aot/aot_images.h"
#include "aot/aot_source.h"

namespace stackpipe::testing {

struct TestMethod {
  std::uint32_t start;
  std::uint32_t size;
};

// Names its methods NAME0, NAME1...
class TestSource : public AotSource {
 public:
  TestSource(std::string name, const std::vector<TestMethod>& methods, std::atomic<int>* freed = nullptr)
      : name_(std::move(name)), freed_(freed) {
    for (const TestMethod& method : methods) {
      starts_.push_back(method.start);
      sizes_.push_back(method.size);
    }
  }
  ~TestSource() override {
    // Whoever comes too late finds other values.
    for (std::uint32_t& size : sizes_) size = 0xdead;
    if (freed_ != nullptr) freed_->fetch_add(1);
  }

  AotMethodTable table() const noexcept override {
    return {starts_.data(), static_cast<std::uint32_t>(starts_.size())};
  }
  bool Decode(std::uint32_t method, AotCode* out) const noexcept override {
    decodes.fetch_add(1, std::memory_order_relaxed);
    out->size = sizes_.data()[method];
    out->kind = CodeKind::kAot;
    return out->size != 0;  // a method without code
  }
  void Describe(std::uint32_t method, AotName* out) override { out->name = name_ + std::to_string(method); }

  mutable std::atomic<std::uint32_t> decodes{0};

 private:
  const std::string name_;
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> sizes_;
  std::atomic<int>* const freed_;
};

// `count` methods of `size` bytes, with a gap of as many behind each.
inline std::vector<TestMethod> MethodsWithGaps(std::uint32_t count, std::uint32_t size = 16) {
  std::vector<TestMethod> methods;
  for (std::uint32_t i = 0; i < count; ++i) methods.push_back({i * size * 2, size});
  return methods;
}

inline AotImageRegistration ImageAt(std::uintptr_t start, std::size_t size,
                                    std::unique_ptr<AotSource> source) {
  AotImageRegistration image;
  image.start = start;
  image.size = size;
  image.source = std::move(source);
  image.name = "image";
  return image;
}

}  // namespace stackpipe::testing

#endif  // STACKPIPE_AOT_AOT_TEST_SOURCE_H_
