// Decimal numbers to double, correctly rounded, whatever the locale: std::from_chars where the standard
// library has it (that of a Mac's compiler does not), strtod elsewhere.
#pragma once

#include <charconv>

namespace lily {

// As std::from_chars of [first, last) with chars_format::general, of numbers written in digits (no inf, no
// nan): on result_out_of_range and on invalid_argument `value` stays as it is.
std::from_chars_result parse_double(const char* first, const char* last, double& value);

// The same by strtod.
std::from_chars_result parse_double_by_strtod(const char* first, const char* last, double& value);

}  // namespace lily
