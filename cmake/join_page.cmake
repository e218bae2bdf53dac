# cmake -D FOLDER=src/server/page -D OUT=file.cpp -P join_page.cmake
# Joins the page's files into one document and writes it, with its Content-Security-Policy, as C++. The policy names the
# script and the style by their hashes, so that nothing else can run in the page.
set(SCRIPTS dom highlight markdown_blocks markdown_inline markdown api store chat messages sidebar settings app)

# The base64 of a digest that is given in hexadecimal.
function(base64_of_hex out hex)
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(text "")
  string(LENGTH ${hex} length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING ${hex} ${at} 6 digits)
    string(LENGTH ${digits} have)
    string(SUBSTRING "${digits}0000" 0 6 digits)
    foreach(shift 18 12 6 0)
      math(EXPR index "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${index} 1 character)
      string(APPEND text ${character})
    endforeach()
    math(EXPR at "${at} + 6")
  endwhile()
  math(EXPR missing "(6 - ${have}) / 2")  # bytes that the last group of three lacks
  if(missing GREATER 0)
    string(LENGTH ${text} length)
    math(EXPR length "${length} - ${missing}")
    string(SUBSTRING ${text} 0 ${length} text)
    string(REPEAT "=" ${missing} padding)
    string(APPEND text ${padding})
  endif()
  set(${out} ${text} PARENT_SCOPE)
endfunction()

file(READ ${FOLDER}/index.html document)
file(READ ${FOLDER}/page.css style)
set(script "'use strict';\n")
foreach(name IN LISTS SCRIPTS)
  file(READ ${FOLDER}/${name}.js part)
  string(APPEND script "\n${part}")
endforeach()
foreach(text IN ITEMS style script)
  if("${${text}}" MATCHES "</[sS][tcTC][yrYR]|<!--[^'\\[]|\\)page\"|\r")
    message(FATAL_ERROR "the page's ${text} has characters that end its element or the literal it is kept in")
  endif()
  string(SHA256 digest "${${text}}")
  base64_of_hex(${text}_hash ${digest})
endforeach()
string(REPLACE "@STYLE@" "${style}" document "${document}")
string(REPLACE "@SCRIPT@" "${script}" document "${document}")
file(WRITE ${OUT}.new "// Made by cmake/join_page.cmake from src/server/page. Do not edit.
#include \"server/page.h\"

namespace lily {

std::string_view page_document() {
  return R\"page(${document})page\";
}

std::string_view page_policy() {
  return \"default-src 'none'; script-src 'sha256-${script_hash}'; style-src 'sha256-${style_hash}'; connect-src 'self'; \"
         \"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \"
         \"require-trusted-types-for 'script'; trusted-types 'none'\";
}

}  // namespace lily
")
file(RENAME ${OUT}.new ${OUT})
