// What the server says about itself without a job: GET /props and /slots as llama.cpp's server has them.
// Private to src/server.
#pragma once

#include <string>

#include "server/server.h"

namespace lily {

// Sampling is the model's default. The template is part of the program, so there is no text of it.
std::string props_json(const ServedModel& model);
// One entry for each sequence that may run at once; as many as run say so. Which request runs in which is not
// told.
std::string slots_json(const ServedModel& model);

}  // namespace lily
