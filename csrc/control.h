// What Python's torch_ops.backends reads and sets: a few functions in a library of their own,
// convtbw_backends, because it needs no other bridge between the two languages.
#pragma once

#include "plan/plan.h"

namespace convtbw {

// Why a call was served as it was.
struct Explanation {
  std::shared_ptr<const Choice> choice;  // nullptr: torch's own kernel
  Problem problem;
  std::string reading;
  PerRole<const char*> names;  // what the caller calls the tensors
  const char* why_torch = nullptr;
};

// Between explain_begin and explain_end on this thread operators plan and do not run.
bool explaining();
void explain(Explanation explanation);
// Torch's own kernel computes, and why: a string literal.
void explain_torch(const char* why);

// Notes which backend served the last call on this thread.
void ran(const Choice& choice);
void ran_in_torch();

}  // namespace convtbw
