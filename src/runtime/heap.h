// What malloc keeps of the memory that was freed.
#pragma once

namespace steep {

/// Returns to the system what was freed, such as what reading a model and making a plan took: no
/// step needs as much of malloc's memory. Does nothing if malloc is not glibc's. Thread-safe.
void trim_heap();

}  // namespace steep
