// What torch 2.13's ATen/functorch/Interpreter.h names of a header that its wheel does not have.
// Only declarations: its functions that serialize an interpreter are not called.
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json() = default;
  template <class T>
  explicit json(const T& value);
  static json parse(const std::string& text);
  std::string dump() const;
  template <class T>
  T get() const;
};

}  // namespace nlohmann
