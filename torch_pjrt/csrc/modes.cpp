#include "modes.h"

namespace torch_pjrt {

Settings& settings() {
  static auto* s = new Settings;
  return *s;
}

Counters& counters() {
  static auto* c = new Counters;
  return *c;
}

} // namespace torch_pjrt
