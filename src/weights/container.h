// Safetensors files mapped into memory: one file, or shards with an index. Nothing is copied; everything in
// the headers is checked before a tensor is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace lily {

// Whether a mapped file is somebody's, or one that its reader has made and may use up (dispose_pages).
enum class Ownership : uint8_t { shared, disposable };

// A mapping of a whole file that nobody writes to. Move-only.
class MappedFile {
 public:
  MappedFile() = default;
  static Result<MappedFile> open(const std::filesystem::path& path, Ownership ownership = Ownership::shared);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Tells the system that these mapped pages are not needed soon: they leave the resident set of the process
// and are read again, from the cache or the disk, if touched. For passes over files larger than memory.
void release_pages(std::span<const std::byte> mapped);
// The same, and the system is asked to drop them from its cache: where memory is short, pages that nobody
// will read again would push out those that are about to be read.
void evict_pages(std::span<const std::byte> mapped);
// Of a disposable file: these pages leave the file, too, whose storage they were; they read as zeros from
// then on. Does nothing to a shared one.
void dispose_pages(std::span<const std::byte> mapped);

struct StoredTensor {
  std::string name;
  DType type = DType::other;
  std::string type_name;  // as written in the file, for messages
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;  // no guaranteed alignment
  uint32_t file = 0;                // index into Container::files()
};

// Parses the header of one safetensors image: length, JSON, names, types, shapes, offsets, overlaps and gaps,
// sizes beyond the file. All faults at once. `path` is only for messages.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> image, std::string_view path);

class Container {
 public:
  // `folder` holds model.safetensors, or model.safetensors.index.json and its shards. Duplicate names over
  // shards, a missing shard, and an index that disagrees with the shards are errors.
  static Result<Container> open(const std::filesystem::path& folder, Ownership ownership = Ownership::shared);

  const StoredTensor* find(std::string_view name) const;  // nullptr when absent
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& files() const { return paths_; }
  uint64_t total_bytes() const;  // of all tensors
  // The whole files as they are mapped, in the order of files(): for devices that use mapped pages in place.
  std::vector<std::span<const std::byte>> mappings() const;

 private:
  std::vector<std::filesystem::path> paths_;
  std::vector<MappedFile> maps_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace lily
