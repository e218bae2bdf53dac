#include "server/openapi.h"

namespace lily {

HttpResponse openapi_response() { return json_response(std::string(openapi_document())); }

}  // namespace lily
