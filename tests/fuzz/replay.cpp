// The main of a fuzz target without libFuzzer: runs every file of the corpus folders given, then a bounded
// number of mutations of them. Everything is deterministic, so that a failure repeats; the seed of the
// mutations is the position in the sequence, not the clock.
//
// Usage: fuzz_<name> FOLDER... [-runs=N]      a crash or a sanitizer report is the failure; status 2: no
// corpus
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// The number of mutations, and how many bytes they may have altogether: large seeds get fewer turns.
constexpr uint64_t kDefaultRuns = 20'000;
constexpr uint64_t kByteBudget = uint64_t{64} << 20;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  size_t below(size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(next() % bound); }

 private:
  uint64_t state_;
};

std::vector<Bytes> read_corpus(const std::vector<std::filesystem::path>& folders) {
  std::vector<std::filesystem::path> files;
  for (const auto& folder : folders) {
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Pieces that parsers of JSON, numbers, templates and text trip over.
constexpr std::string_view kTokens[] = {"{",          "}",
                                        "[",          "]",
                                        ":",          ",",
                                        "\"",         "\\",
                                        "\\u0000",    "\\ud800",
                                        "\\udc00",    "null",
                                        "true",       "false",
                                        "0",          "-1",
                                        "1e999",      "-0.0",
                                        "0.1",        "4294967296",
                                        "NaN",        "2147483648",
                                        "\xff\xfe",   "\xf0\x9f\x98\x80",
                                        "\xed\xa0",   "<think>",
                                        "</think>",   "<tool_call>",
                                        "\n",         "\r\n\r\n",
                                        " ",          "<|im_end|>",
                                        "\xc0\x80",   "</tool_call>",
                                        "<function=", "18446744073709551615"};

void erase_range(Bytes& bytes, Random& random) {
  const size_t begin = random.below(bytes.size());
  const size_t length = 1 + random.below(std::min<size_t>(bytes.size() - begin, 64));
  bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(begin),
              bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), begin + length)));
}

void insert_bytes(Bytes& bytes, size_t at, const uint8_t* data, size_t size) {
  bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), data, data + size);
}

void mutate_once(Bytes& bytes, const std::vector<Bytes>& corpus, Random& random) {
  const size_t at = random.below(bytes.size() + 1);
  switch (random.below(7)) {
    case 0:  // flip one bit
      if (!bytes.empty()) {
        bytes[random.below(bytes.size())] ^= static_cast<uint8_t>(1U << random.below(8));
      }
      break;
    case 1:  // overwrite one byte
      if (!bytes.empty()) {
        bytes[random.below(bytes.size())] = static_cast<uint8_t>(random.next());
      }
      break;
    case 2:
      if (!bytes.empty()) {
        erase_range(bytes, random);
      }
      break;
    case 3: {  // a telling token
      const std::string_view token = kTokens[random.below(std::size(kTokens))];
      insert_bytes(bytes, at, reinterpret_cast<const uint8_t*>(token.data()), token.size());
      break;
    }
    case 4: {  // repeat a piece, now and then many times: depth and length
      if (!bytes.empty()) {
        const size_t begin = random.below(bytes.size());
        const size_t length = 1 + random.below(std::min<size_t>(bytes.size() - begin, 16));
        const Bytes piece(bytes.begin() + static_cast<ptrdiff_t>(begin),
                          bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), begin + length)));
        const size_t times = random.below(8) == 0 ? 64 : 1;
        for (size_t i = 0; i < times; ++i) {
          insert_bytes(bytes, at, piece.data(), piece.size());
        }
      }
      break;
    }
    case 5: {  // the tail of another seed
      const Bytes& other = corpus[random.below(corpus.size())];
      const size_t from = random.below(other.size() + 1);
      bytes.resize(at);
      insert_bytes(bytes, at, other.data() + from, other.size() - from);
      break;
    }
    default:
      bytes.resize(at);
      break;
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::filesystem::path> folders;
  uint64_t runs = kDefaultRuns;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with("-runs=")) {
      runs = std::strtoull(arguments[i] + 6, nullptr, 10);
    } else {
      folders.emplace_back(argument);
    }
  }
  const std::vector<Bytes> corpus = read_corpus(folders);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER... [-runs=N]: no seed found\n", arguments[0]);
    return 2;
  }
  for (const Bytes& seed : corpus) {
    LLVMFuzzerTestOneInput(seed.data(), seed.size());
  }
  uint64_t done = 0;
  for (uint64_t spent = 0; done < runs && spent < kByteBudget; ++done) {
    Random random(done);
    Bytes bytes = corpus[random.below(corpus.size())];
    for (size_t steps = 1 + random.below(4); steps > 0; --steps) {
      mutate_once(bytes, corpus, random);
    }
    spent += bytes.size() + 64;
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu seeds, %llu mutations\n", corpus.size(), static_cast<unsigned long long>(done));
  return 0;
}
