// What the doors that are read as chat requests share: their bodies are written anew as the body of a chat
// request, so that a field means the same at every door.
#pragma once

#include <boost/json/object.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

#include "server/json_fields.h"
#include "server/openai.h"

namespace lily {

struct RenamedField {
  std::string_view chat;  // as a chat request has it
  std::string_view here;
};

// Copies those fields that are there.
void copy_fields(const boost::json::object& from, std::initializer_list<std::string_view> names,
                 boost::json::object& to);
// The fields that sample, and those of lily's own, which are called the same at all doors.
void copy_shared_fields(const boost::json::object& from, boost::json::object& to);

// An error about a field of the chat request says how the field is called at this door.
void rename_fields(ApiError& error, std::initializer_list<RenamedField> names);

boost::json::object text_part(std::string_view text);
boost::json::object chat_message(std::string_view role, boost::json::value content);
// {"type": "function", "function": {...}} of a tool that has a description and, under `parameters`, a schema;
// both may be absent.
boost::json::object function_tool(std::string_view name, const Fields& tool, std::string_view parameters);
// A call in the history.
boost::json::object function_call(std::string_view id, std::string_view name,
                                  const boost::json::value* arguments);

// Text of nothing but blanks.
bool is_blank(std::string_view text);
// The JSON object that a whole call has as its arguments.
boost::json::object call_input(const std::string& arguments);

}  // namespace lily
