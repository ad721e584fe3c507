// What malloc keeps of the memory that was freed.
#pragma once

namespace steep {

/// Returns to the system what reading a model and making a plan took and freed: no step needs as
/// much of malloc's memory. Does nothing if malloc is not glibc's. Thread-safe.
void trim_heap();

}  // namespace steep
