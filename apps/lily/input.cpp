#include "apps/lily/input.h"

#include <array>
#include <fstream>
#include <iostream>

namespace lily::app {
namespace {

// A read that fails sets badbit here; an istreambuf_iterator would throw.
std::string read_all(std::istream& in) {
  constexpr size_t kPiece = 64U << 10;
  std::array<char, kPiece> piece;
  std::string text;
  while (in) {
    in.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<size_t>(in.gcount()));
  }
  return text;
}

}  // namespace

Result<std::string> read_input(const std::filesystem::path& path) {
  if (path == "-") {
    std::string text = read_all(std::cin);
    if (std::cin.bad()) {
      return fail(ErrorKind::io, "cannot read standard input");
    }
    return text;
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return fail(ErrorKind::invalid_input, "'{}' is a folder: expected a file", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail_errno("cannot open", path.string());
  }
  std::string text = read_all(file);
  if (file.bad()) {
    return fail(ErrorKind::io, "cannot read '{}'", path.string());
  }
  return text;
}

}  // namespace lily::app
