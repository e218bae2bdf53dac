#include "weights/staged_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "weights/container.h"
#include "weights/faults.h"

namespace lily {
namespace {

namespace fs = std::filesystem;

Result<void> sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) {
    return fail_errno("cannot open", folder.string());
  }
  const int status = ::fsync(file);
  const int code = errno;
  ::close(file);
  if (status != 0 && code != EINVAL) {  // EINVAL: the file system does not sync folders
    errno = code;
    return fail_errno("cannot flush", folder.string());
  }
  return {};
}

// False: errno says why.
bool write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::write(file, content.data(), content.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    content.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// mkdtemp gives a folder that only its owner reads; the final one has the usual permissions.
void open_permissions(const fs::path& folder) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::chmod(folder.c_str(), 0777 & ~mask);
}

}  // namespace

Result<StagedFolder> StagedFolder::create(const fs::path& destination) {
  std::error_code error;
  StagedFolder out;
  out.destination_ = fs::absolute(destination, error).lexically_normal();
  if (!out.destination_.has_filename()) {  // "folder/"
    out.destination_ = out.destination_.parent_path();
  }
  const std::string name = in_quotes(out.destination_.string());
  if (fs::exists(out.destination_, error)) {
    if (!fs::is_directory(out.destination_, error)) {
      return fail(ErrorKind::invalid_input, "{} exists and is not a folder", name);
    }
    if (!fs::is_empty(out.destination_, error)) {
      return fail(ErrorKind::invalid_input, "{} exists and is not empty: remove it or name another folder",
                  name);
    }
  }
  fs::create_directories(out.destination_.parent_path(), error);
  if (error) {
    return fail(ErrorKind::io, "cannot make the folder {}: {}",
                in_quotes(out.destination_.parent_path().string()), error.message());
  }
  std::string pattern = out.destination_.string() + ".tmp-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    return fail_errno("cannot make the folder", pattern);
  }
  open_permissions(pattern);
  out.temporary_ = pattern;
  return out;
}

StagedFolder::StagedFolder(StagedFolder&& other) noexcept
    : destination_(std::move(other.destination_)), temporary_(std::exchange(other.temporary_, {})) {}

StagedFolder::~StagedFolder() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

Result<void> StagedFolder::write_file(std::string_view name, std::string_view content) const {
  const fs::path path = temporary_ / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) {
    return fail_errno("cannot create", path.string());
  }
  const bool written = write_all(file, content) && ::fsync(file) == 0;
  const int code = errno;
  const bool closed = ::close(file) == 0;
  if (!written || !closed) {
    errno = written ? errno : code;
    return fail_errno("cannot write", path.string());
  }
  return {};
}

Result<void> StagedFolder::copy_file(const fs::path& from, std::string_view name) const {
  LILY_TRY(const MappedFile file, MappedFile::open(from));
  return write_file(name, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

Result<void> StagedFolder::commit() {
  LILY_TRY_VOID(sync_folder(temporary_));
  // An empty folder of the final name is replaced in the same step; one that was filled meanwhile is not.
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0) {
    return fail_errno("cannot rename to", destination_.string());
  }
  temporary_.clear();
  return sync_folder(destination_.parent_path());
}

}  // namespace lily
