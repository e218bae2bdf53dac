// Framing of server-sent events.
#pragma once

#include <string>
#include <string_view>

namespace lily {

// "data: <text>\n\n"; a line end inside the text starts another data line, as the format wants it.
std::string sse_data(std::string_view text);
// "event: <name>\ndata: ...\n\n".
std::string sse_event(std::string_view name, std::string_view text);
// ": <text>\n\n": says that the connection lives; readers ignore it.
std::string sse_comment(std::string_view text);
// What ends a stream of OpenAI's.
std::string sse_done();

}  // namespace lily
