#include "findings.h"

#include "python.h"
#include "state.h"
#include "trace.h"

#include <c10/util/flat_hash_map.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace torch_pjrt {
namespace {

using WeakValue = c10::weak_intrusive_ptr<Value>;

// The weak references keep the values' addresses from being used again, so an address says which value it was.
struct Run {
  uint64_t number;
  std::vector<WeakValue> inputs;
  std::vector<WeakValue> results;
  py::object program;
  py::object findings;
  bool spoiled = false; // it read what an earlier run got wrong: what it finds itself is a consequence
};

// Touched with the GIL only.
std::deque<Run>& runs() {
  static auto* r = new std::deque<Run>;
  return *r;
}
uint64_t last_number = 0;
std::deque<std::shared_ptr<Failure>>& unreported() {
  static auto* f = new std::deque<std::shared_ptr<Failure>>;
  return *f;
}

// Fails these results of a run (all of them if it is not known which), and those of every later run that read one.
void fail(
    const Run& first, const std::shared_ptr<Failure>& failure, const std::optional<std::vector<size_t>>& results) {
  ska::flat_hash_set<const Value*> failed;
  std::vector<ValuePtr> kept; // a value's end may run Python, which must not happen while the runs are walked
  auto fail_value = [&](const WeakValue& weak) {
    failed.insert(weak._unsafe_get_target());
    if (auto value = weak.lock()) {
      StateLock lock;
      value->failure = failure;
      kept.push_back(std::move(value));
    }
  };
  for (size_t i = 0; i < first.results.size(); ++i)
    if (!results || std::find(results->begin(), results->end(), i) != results->end())
      fail_value(first.results[i]);
  for (auto& run : runs())
    for (const auto& input : run.inputs)
      if (failed.find(input._unsafe_get_target()) != failed.end()) {
        run.spoiled = true;
        for (const auto& result : run.results)
          fail_value(result);
        break;
      }
}

} // namespace

uint64_t note_run(
    const std::vector<ValuePtr>& inputs,
    const std::vector<ValuePtr>& results,
    py::object program,
    py::object findings) {
  uint64_t number = ++last_number;
  if (findings.is_none() && runs().empty())
    return number;
  runs().push_back(
      Run{number,
          {inputs.begin(), inputs.end()},
          {results.begin(), results.end()},
          std::move(program),
          std::move(findings)});
  return number;
}

void look_at_findings(uint64_t until) {
  while (!runs().empty()) {
    uint64_t number = runs().front().number;
    py::object findings = runs().front().findings;
    py::object said = py::none();
    if (!findings.is_none() && !runs().front().spoiled) {
      said = bridge().verdict(runs().front().program, findings, number <= until);
      if (runs().empty() || runs().front().number != number)
        continue; // another thread has seen to it while this one waited
      if (said.ptr() == Py_False)
        return;
    }
    Run done = std::move(runs().front());
    runs().pop_front();
    if (said.is_none())
      continue;
    auto [exception, results] = said.cast<std::pair<py::object, std::optional<std::vector<size_t>>>>();
    auto failure = std::make_shared<Failure>(exception.release().ptr());
    unreported().push_back(failure);
    fail(done, failure, results);
  }
}

void raise_findings(uint64_t until) {
  look_at_findings(until);
  if (!unreported().empty())
    throw_failure(std::shared_ptr<Failure>(unreported().front()));
}

void reported(const std::shared_ptr<Failure>& failure) {
  auto& open = unreported();
  open.erase(std::remove(open.begin(), open.end(), failure), open.end());
}

} // namespace torch_pjrt
