#include "base/number.h"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>
#include <version>

namespace lily {
namespace {

// How many characters of `text` are a number of the form [-]digits[.digits][e[+-]digits].
size_t length_of_number(std::string_view text) {
  const auto digits = [&](size_t at) {
    size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') {
      ++end;
    }
    return end;
  };
  const size_t begin = !text.empty() && text[0] == '-' ? 1 : 0;
  size_t end = digits(begin);
  size_t count = end - begin;
  if (end < text.size() && text[end] == '.') {
    const size_t after = digits(end + 1);
    count += after - end - 1;
    end = count > 0 ? after : end;
  }
  if (count == 0) {
    return 0;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const size_t sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? 1 : 0;
    const size_t after = digits(end + 1 + sign);
    end = after > end + 1 + sign ? after : end;
  }
  return end;
}

}  // namespace

// lily never sets a locale, so the decimal point is a point.
std::from_chars_result parse_double_by_strtod(const char* first, const char* last, double& value) {
  const std::string text(first, length_of_number({first, static_cast<size_t>(last - first)}));
  if (text.empty()) {
    return {first, std::errc::invalid_argument};
  }
  errno = 0;
  const double parsed = std::strtod(text.c_str(), nullptr);
  const char* end = first + text.size();
  const bool subnormal = parsed != 0 && parsed > -1 && parsed < 1;  // ERANGE too, but a number
  if (errno == ERANGE && !subnormal) {
    return {end, std::errc::result_out_of_range};
  }
  value = parsed;
  return {end, std::errc{}};
}

std::from_chars_result parse_double(const char* first, const char* last, double& value) {
#if defined(__cpp_lib_to_chars)
  return std::from_chars(first, last, value);
#else
  return parse_double_by_strtod(first, last, value);
#endif
}

}  // namespace lily
