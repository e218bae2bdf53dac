// A folder that appears whole or not at all: files are made in a temporary folder beside it, which takes its
// name at the end. An error or a crash before that leaves nothing under the final name.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace lily {

// Move-only. Destruction without commit() removes the temporary folder.
class StagedFolder {
 public:
  // `destination` must not exist, or be an empty folder; its parents are made.
  static Result<StagedFolder> create(const std::filesystem::path& destination);
  StagedFolder(StagedFolder&& other) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;
  ~StagedFolder();

  const std::filesystem::path& path() const { return temporary_; }  // where the files are made
  Result<void> write_file(std::string_view name, std::string_view content) const;
  Result<void> copy_file(const std::filesystem::path& from, std::string_view name) const;
  Result<void> commit();

 private:
  StagedFolder() = default;
  std::filesystem::path destination_;
  std::filesystem::path temporary_;  // empty after commit or move
};

}  // namespace lily
