# cmake -D IN=file -D OUT=file.cpp -D HEADER=header -D FUNCTION=name -D VERSION=x -P embed_text.cmake
# Writes a text as C++: a function of lily that returns it. LILY_VERSION in it becomes the version.
file(READ ${IN} text)
string(REPLACE "LILY_VERSION" "${VERSION}" text "${text}")
if("${text}" MATCHES "\\)text\"")
  message(FATAL_ERROR "${IN} ends the literal it is kept in")
endif()
file(WRITE ${OUT}.new "// Made by cmake/embed_text.cmake. Do not edit.
#include \"${HEADER}\"

namespace lily {

std::string_view ${FUNCTION}() {
  return R\"text(${text})text\";
}

}  // namespace lily
")
file(RENAME ${OUT}.new ${OUT})
