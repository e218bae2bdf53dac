// The files of the disk tier: a head that says what the file is, a payload, checksums of both. A file is
// written under another name, flushed and renamed: under its own name it is whole or absent, whatever
// happens meanwhile.
//
// Little-endian. Head: "LILYKEPT", u32 version 1, u32 kind, the store's hash (model and layout), the hash of
// the token ids [0, end), u32 begin, u32 end; of a checkpoint the ids themselves, i32[end]; then the hash of
// all this. Payload: what the device wrote. Then the hash of the payload. Hashes are 16 bytes, the higher
// half first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/hash.h"

namespace lily {

enum class DiskKind : uint32_t { checkpoint = 1, rows = 2 };

struct DiskHead {
  DiskKind kind = DiskKind::checkpoint;
  Hash128 store;   // of model and layout
  Hash128 prefix;  // of the ids [0, end)
  uint32_t begin = 0;
  uint32_t end = 0;
  std::vector<int32_t> ids;  // of a checkpoint
  bool operator==(const DiskHead&) const = default;
};

// An open file that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  int get() const { return number_; }

 private:
  int number_;
};

class DiskWriter final : public ByteSink {
 public:
  static constexpr const char* kUnfinished = ".tmp";  // after the name of a file that is being written

  static Result<DiskWriter> create(const std::filesystem::path& path, const DiskHead& head);
  DiskWriter(DiskWriter&&) noexcept = default;
  ~DiskWriter() override;  // removes what was not finished
  Result<void> write(std::span<const std::byte> bytes) override;
  Result<void> finish();  // the file is on the disk, whole, under its name
  uint64_t bytes() const { return bytes_; }

 private:
  DiskWriter() = default;
  Result<void> put(std::span<const std::byte> bytes);
  std::filesystem::path path_;  // empty: nothing to remove
  Descriptor file_;
  Hasher hasher_;
  uint64_t bytes_ = 0;
};

// Makes the names in `folder` outlast a loss of power.
Result<void> flush_folder(const std::filesystem::path& folder);

class DiskReader final : public ByteSource {
 public:
  // Reads and verifies the head alone.
  static Result<DiskReader> open(const std::filesystem::path& path);
  DiskReader(DiskReader&&) noexcept = default;
  const DiskHead& head() const { return head_; }
  uint64_t bytes() const { return size_; }  // of the file
  uint64_t left() const { return left_; }   // bytes of the payload that were not read yet
  Result<void> read(std::span<std::byte> into) override;
  Result<void> finish();  // after the whole payload was read: whether it is what was written
  Result<void> verify();  // the same, with the payload read and forgotten

 private:
  DiskReader() = default;
  Result<void> get(std::span<std::byte> into);
  Result<void> read_head();
  std::filesystem::path path_;
  Descriptor file_;
  Hasher hasher_;
  DiskHead head_;
  uint64_t size_ = 0;
  uint64_t left_ = 0;  // bytes of the payload
};

}  // namespace lily
