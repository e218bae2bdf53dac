#include "weights/container.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "weights/faults.h"
#include "weights/json.h"

namespace lily {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

struct StoredType {
  std::string_view name;
  DType type;
  uint32_t bits;
};
constexpr StoredType kStoredTypes[] = {
    {"F32", DType::f32, 32},     {"F16", DType::f16, 16},      {"BF16", DType::bf16, 16},
    {"U32", DType::u32, 32},     {"I32", DType::i32, 32},      {"U8", DType::u8, 8},
    {"I8", DType::i8, 8},        {"I64", DType::i64, 64},      {"F64", DType::f64, 64},
    {"BOOL", DType::boolean, 8}, {"U64", DType::other, 64},    {"I16", DType::other, 16},
    {"U16", DType::other, 16},   {"F8_E4M3", DType::other, 8}, {"F8_E5M2", DType::other, 8},
    {"F8_E8M0", DType::other, 8}};

struct Range {
  uint64_t begin, end;
  size_t tensor;  // index into the list being built
};

// Reads the entries of one header; faults name the tensor.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> data, Faults& faults) : data_(data), faults_(faults) {}

  void entry(std::string_view name, const json::value& value) {
    const json::object* fields = value.if_object();
    if (fields == nullptr) {
      return faults_.add("tensor {}: expected an object, found {}", in_quotes(name), json_text(value));
    }
    StoredTensor tensor;
    tensor.name = std::string(name);
    uint32_t bits = 0;
    const bool typed = read_type(*fields, tensor, bits);
    const bool shaped = read_shape(*fields, tensor);
    Range range{};
    const bool placed = read_offsets(*fields, name, range);
    if (!typed || !shaped || !placed) {
      return;
    }
    if (!check_size(tensor, bits, range.end - range.begin)) {
      return;
    }
    tensor.data = data_.subspan(range.begin, range.end - range.begin);
    range.tensor = tensors_.size();
    tensors_.push_back(std::move(tensor));
    ranges_.push_back(range);
  }

  // Tensors must cover the data without overlap or gap. Meaningful only when every entry was read.
  void check_cover() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    uint64_t covered = 0;
    const std::string* last = nullptr;
    for (const Range& range : ranges_) {
      const std::string& name = tensors_[range.tensor].name;
      if (range.begin < covered) {
        faults_.add("tensor {} at bytes {} to {} overlaps {}", in_quotes(name), range.begin, range.end,
                    in_quotes(*last));
      } else if (range.begin > covered) {
        faults_.add("{} bytes before tensor {} belong to no tensor", range.begin - covered, in_quotes(name));
      }
      if (range.end >= covered) {
        covered = range.end;
        last = &name;
      }
    }
    if (covered < data_.size()) {
      faults_.add("{} bytes after the last tensor", data_.size() - covered);
    }
  }

  std::vector<StoredTensor> take() { return std::move(tensors_); }

 private:
  bool read_type(const json::object& fields, StoredTensor& tensor, uint32_t& bits) {
    const json::value* value = fields.if_contains("dtype");
    if (value == nullptr || !value->is_string()) {
      faults_.add("tensor {}: dtype: expected a string, found {}", in_quotes(tensor.name), json_text(value));
      return false;
    }
    tensor.type_name = std::string(value->get_string());
    for (const StoredType& known : kStoredTypes) {
      if (known.name == tensor.type_name) {
        tensor.type = known.type;
        bits = known.bits;
        return true;
      }
    }
    faults_.add("tensor {}: dtype {} is unknown", in_quotes(tensor.name), in_quotes(tensor.type_name));
    return false;
  }

  bool read_shape(const json::object& fields, StoredTensor& tensor) {
    const json::value* value = fields.if_contains("shape");
    const json::array* sizes = value == nullptr ? nullptr : value->if_array();
    if (sizes == nullptr) {
      faults_.add("tensor {}: shape: expected an array of sizes, found {}", in_quotes(tensor.name),
                  json_text(value));
      return false;
    }
    if (sizes->size() > kMaxRank) {
      faults_.add("tensor {}: {} dimensions, at most {} are read", in_quotes(tensor.name), sizes->size(),
                  kMaxRank);
      return false;
    }
    for (const json::value& size : *sizes) {
      const auto number = json_unsigned(size);
      if (!number) {
        faults_.add("tensor {}: shape: {} is not a size", in_quotes(tensor.name), json_text(size));
        return false;
      }
      tensor.shape.push_back(*number);
    }
    return true;
  }

  bool read_offsets(const json::object& fields, std::string_view name, Range& range) {
    const json::value* value = fields.if_contains("data_offsets");
    const json::array* pair = value == nullptr ? nullptr : value->if_array();
    if (pair == nullptr || pair->size() != 2 || !json_unsigned((*pair)[0]) || !json_unsigned((*pair)[1])) {
      faults_.add("tensor {}: data_offsets: expected [begin, end], found {}", in_quotes(name),
                  json_text(value));
      return false;
    }
    range.begin = *json_unsigned((*pair)[0]);
    range.end = *json_unsigned((*pair)[1]);
    if (range.end < range.begin) {
      faults_.add("tensor {}: data_offsets: end {} is before begin {}", in_quotes(name), range.end,
                  range.begin);
      return false;
    }
    if (range.end > data_.size()) {
      faults_.add("tensor {} ends at byte {} of the data, but the file has only {}: is it complete?",
                  in_quotes(name), range.end, data_.size());
      return false;
    }
    return true;
  }

  bool check_size(const StoredTensor& tensor, uint32_t bits, uint64_t stored) {
    uint64_t bytes = bits / 8;
    for (const uint64_t size : tensor.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) {
        faults_.add("tensor {}: its shape holds more than 2^64 bytes", in_quotes(tensor.name));
        return false;
      }
    }
    if (bytes != stored) {
      faults_.add("tensor {}: {} of its shape takes {} bytes, data_offsets give {}", in_quotes(tensor.name),
                  tensor.type_name, bytes, stored);
      return false;
    }
    return true;
  }

  std::span<const std::byte> data_;
  Faults& faults_;
  std::vector<StoredTensor> tensors_;
  std::vector<Range> ranges_;
};

void check_metadata(const json::value& value, Faults& faults) {
  const json::object* fields = value.if_object();
  const bool strings =
      fields != nullptr && std::all_of(fields->begin(), fields->end(),
                                       [](const auto& field) { return field.value().is_string(); });
  if (!strings) {
    faults.add("__metadata__: expected an object of strings, found {}", json_text(value));
  }
}

// The JSON of a header, and where the data begins.
Result<std::string_view> find_header(std::span<const std::byte> image, std::string_view path) {
  if (image.size() < 8) {
    return fail(ErrorKind::invalid_input, "{}: {} bytes are too few for a safetensors file", in_quotes(path),
                image.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  if (text.starts_with("version https://git-lfs")) {
    return fail(ErrorKind::invalid_input,
                "{}: a Git LFS pointer, not the file itself: get it with 'git lfs pull' or 'hf download'",
                in_quotes(path));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<uint64_t>(image[static_cast<size_t>(i)]);
  }
  if (length > kMaxHeader) {
    return fail(ErrorKind::invalid_input,
                "{}: not a safetensors file: a header of {} bytes, at most {} are allowed", in_quotes(path),
                length, kMaxHeader);
  }
  if (length > image.size() - 8) {
    return fail(ErrorKind::invalid_input,
                "{}: a header of {} bytes, but the file has only {} after its length: is it complete?",
                in_quotes(path), length, image.size() - 8);
  }
  return text.substr(8, length);
}

}  // namespace

Result<MappedFile> MappedFile::open(const fs::path& path, Ownership ownership) {
  const bool disposable = ownership == Ownership::disposable;
  const int access = disposable ? O_RDWR : O_RDONLY;
  const int file = ::open(path.c_str(), access | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (file < 0) {
    return fail_errno("cannot open", path.string());
  }
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    return fail(ErrorKind::io, "cannot map {}: not a regular file", in_quotes(path.string()));
  }
  MappedFile mapped;
  if (status.st_size > 0) {
    // Only of a writable, shared mapping can pages be taken out of the file.
    const int protection = disposable ? PROT_READ | PROT_WRITE : PROT_READ;
    const int kind = disposable ? MAP_SHARED : MAP_PRIVATE;
    void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), protection, kind, file, 0);
    if (data == MAP_FAILED) {
      auto error = fail_errno("cannot map", path.string());
      ::close(file);
      return error;
    }
    mapped.data_ = static_cast<const std::byte*>(data);
    mapped.size_ = static_cast<size_t>(status.st_size);
  }
  ::close(file);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

namespace {

// Advises about the whole pages inside `mapped`. A hint; refusal costs memory only.
void advise_pages(std::span<const std::byte> mapped, int advice) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size()) / page * page;
  if (begin < end) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): begin is where a page begins
    ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
  }
}

}  // namespace

void release_pages(std::span<const std::byte> mapped) { advise_pages(mapped, MADV_DONTNEED); }

void evict_pages(std::span<const std::byte> mapped) {
#ifdef MADV_PAGEOUT
  advise_pages(mapped, MADV_PAGEOUT);
#endif
  release_pages(mapped);
}

void dispose_pages(std::span<const std::byte> mapped) {
#ifdef MADV_REMOVE
  advise_pages(mapped, MADV_REMOVE);  // refused for a mapping that is not writable
#else
  release_pages(mapped);
#endif
}

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> image, std::string_view path) {
  LILY_TRY(const std::string_view header, find_header(image, path));
  if (!header.starts_with('{')) {
    return fail(ErrorKind::invalid_input, "{}: not a safetensors file: the header does not begin with '{{'",
                in_quotes(path));
  }
  const JsonLimits limits{.bytes = kMaxHeader, .values = 4'000'000, .depth = 4};
  LILY_TRY(const json::object entries, parse_json_object(header, in_quotes(path) + ": header", limits));
  Faults faults;
  HeaderReader reader(image.subspan(8 + header.size()), faults);
  for (const auto& [key, value] : entries) {
    if (key == "__metadata__") {
      check_metadata(value, faults);
    } else {
      reader.entry(std::string_view(key.data(), key.size()), value);
    }
  }
  if (faults.empty()) {
    reader.check_cover();
  }
  if (!faults.empty()) {
    return fail(faults.error(ErrorKind::invalid_input, in_quotes(path)));
  }
  return reader.take();
}

namespace {

// What the index says: shard of every tensor.
using WeightMap = std::unordered_map<std::string, std::string>;

Result<WeightMap> read_index(const fs::path& path) {
  LILY_TRY(const MappedFile file, MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const std::string thing = in_quotes(path.string());
  LILY_TRY(const json::object root, parse_json_object(text, thing));
  const json::value* map = root.if_contains("weight_map");
  if (map == nullptr || !map->is_object() || map->get_object().empty()) {
    return fail(ErrorKind::invalid_input,
                "{}: weight_map: expected an object of tensor names and file names, found {}", thing,
                json_text(map));
  }
  Faults faults;
  WeightMap out;
  for (const auto& [key, value] : map->get_object()) {
    const std::string name(key);
    const std::string shard = value.is_string() ? std::string(value.get_string()) : std::string();
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos) {
      faults.add("tensor {}: {} is not the name of a file in the folder", in_quotes(name), json_text(value));
    } else {
      out.emplace(name, shard);
    }
  }
  if (!faults.empty()) {
    return fail(faults.error(ErrorKind::invalid_input, thing));
  }
  return out;
}

Result<std::vector<std::string>> list_files(const fs::path& folder, const WeightMap& index, bool has_index) {
  std::error_code error;
  const bool has_single = fs::exists(folder / kSingleFile, error);
  if (!has_index) {
    if (has_single) {
      return std::vector<std::string>{std::string(kSingleFile)};
    }
    return fail(ErrorKind::not_found, "{}: holds neither {} nor {}", in_quotes(folder.string()), kSingleFile,
                kIndexFile);
  }
  std::set<std::string> files;
  for (const auto& [name, shard] : index) {
    files.insert(shard);
  }
  if (has_single && !files.contains(std::string(kSingleFile))) {
    return fail(ErrorKind::invalid_input,
                "{}: {} is there, but {} lists other files: two checkpoints in one folder?",
                in_quotes(folder.string()), kSingleFile, kIndexFile);
  }
  Faults faults;
  for (const std::string& file : files) {
    if (!fs::exists(folder / file, error)) {
      faults.add("{} is missing, {} lists it", in_quotes(file), kIndexFile);
    }
  }
  if (!faults.empty()) {
    return fail(faults.error(ErrorKind::not_found, in_quotes(folder.string())));
  }
  return std::vector<std::string>(files.begin(), files.end());
}

void check_index(const WeightMap& index, const std::vector<StoredTensor>& tensors,
                 const std::vector<fs::path>& files, Faults& faults) {
  std::unordered_map<std::string_view, std::string> found;
  for (const StoredTensor& tensor : tensors) {
    const std::string file = files[tensor.file].filename().string();
    found.emplace(tensor.name, file);
    const auto listed = index.find(tensor.name);
    if (listed == index.end()) {
      faults.add("tensor {} of {} is not in {}", in_quotes(tensor.name), in_quotes(file), kIndexFile);
    }
  }
  std::vector<std::pair<std::string_view, std::string_view>> sorted(index.begin(), index.end());
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [name, shard] : sorted) {
    const auto at = found.find(name);
    if (at == found.end()) {
      faults.add("tensor {}: {} says it is in {}, which does not have it", in_quotes(name), kIndexFile,
                 in_quotes(shard));
    } else if (at->second != shard) {
      faults.add("tensor {}: {} says it is in {}, it is in {}", in_quotes(name), kIndexFile, in_quotes(shard),
                 in_quotes(at->second));
    }
  }
}

}  // namespace

Result<Container> Container::open(const fs::path& folder, Ownership ownership) {
  std::error_code error;
  if (!fs::exists(folder, error)) {
    return fail(ErrorKind::not_found, "{}: there is no such folder", in_quotes(folder.string()));
  }
  if (!fs::is_directory(folder, error)) {
    return fail(ErrorKind::invalid_input, "{}: expected a folder with a checkpoint, found a file",
                in_quotes(folder.string()));
  }
  const bool has_index = fs::exists(folder / kIndexFile, error);
  WeightMap index;
  if (has_index) {
    LILY_TRY(index, read_index(folder / kIndexFile));
  }
  LILY_TRY(const std::vector<std::string> names, list_files(folder, index, has_index));

  Container out;
  Faults faults;
  for (const std::string& name : names) {
    out.paths_.push_back(folder / name);
    LILY_TRY(MappedFile file, MappedFile::open(out.paths_.back(), ownership));
    auto tensors = parse_safetensors(file.bytes(), out.paths_.back().string());
    out.maps_.push_back(std::move(file));
    if (!tensors) {
      faults.add_all(tensors.error(), tensors.error().details.empty() ? "" : in_quotes(name) + ": ");
      continue;
    }
    for (StoredTensor& tensor : *tensors) {
      tensor.file = static_cast<uint32_t>(out.paths_.size() - 1);
      const auto [at, inserted] = out.by_name_.emplace(tensor.name, out.tensors_.size());
      if (!inserted) {
        faults.add("tensor {} is in {} and in {}", in_quotes(tensor.name),
                   in_quotes(names[out.tensors_[at->second].file]), in_quotes(name));
        continue;
      }
      out.tensors_.push_back(std::move(tensor));
    }
  }
  if (faults.empty() && has_index) {
    check_index(index, out.tensors_, out.paths_, faults);
  }
  if (!faults.empty()) {
    return fail(faults.error(ErrorKind::invalid_input, in_quotes(folder.string())));
  }
  return out;
}

const StoredTensor* Container::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

std::vector<std::span<const std::byte>> Container::mappings() const {
  std::vector<std::span<const std::byte>> all;
  for (const MappedFile& file : maps_) {
    all.push_back(file.bytes());
  }
  return all;
}

uint64_t Container::total_bytes() const {
  uint64_t total = 0;
  for (const StoredTensor& tensor : tensors_) {
    total += tensor.data.size();
  }
  return total;
}

}  // namespace lily
