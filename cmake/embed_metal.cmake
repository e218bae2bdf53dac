# cmake -D OUT=file.cpp -D FUNCTION=name -D FILES=file.metal,... -P embed_metal.cmake
# Writes joined .metal files (join_metal.cmake) as C++: a function that returns them.
string(REPLACE "," ";" files "${FILES}")
set(entries "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME_WE)
  string(APPEND entries "    {\"${name}\", R\"metal(${text})metal\"},\n")
endforeach()
file(WRITE "${OUT}.new" "// Made by cmake/embed_metal.cmake. Do not edit.
#include \"backends/metal/sources.h\"

namespace lily::metal {

const std::vector<LibrarySource>& ${FUNCTION}() {
  static const std::vector<LibrarySource> sources = {
${entries}  };
  return sources;
}

}  // namespace lily::metal
")
file(RENAME "${OUT}.new" "${OUT}")
