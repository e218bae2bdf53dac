// POST /tokenize, /detokenize and /apply-template: what the server does to text, for those who want to look.
// Bodies and fields as llama.cpp's server has them.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "server/api_error.h"
#include "server/server.h"

namespace lily {

// {"content": text, "parse_special": true, "with_pieces": false} -> {"tokens": [...]}
ApiResult<std::string> tokenize_json(const boost::json::value& body, const ServedModel& model);
// {"tokens": [...]} -> {"content": text}
ApiResult<std::string> detokenize_json(const boost::json::value& body, const ServedModel& model);
// A chat request -> {"prompt": text}; with "tokenize": true also {"tokens": [...]}, as the prompt is read.
ApiResult<std::string> apply_template_json(const boost::json::value& body, const ServedModel& model);

}  // namespace lily
