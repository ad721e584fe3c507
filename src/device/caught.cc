#include "device/caught.h"

#include <exception>
#include <new>
#include <stdexcept>

namespace steep {
namespace {

CaughtError no_memory() { return {STEEP_MEMORY, {.what = "There is not enough memory."}}; }

}  // namespace

CaughtError caught_error(const char* failure) {
  try {
    throw;
  } catch (const ModelError& e) {
    return {STEEP_MODEL, e.parts()};
  } catch (const ShapeError& e) {
    return {STEEP_SHAPE, e.parts()};
  } catch (const DataError& e) {
    return {STEEP_DATA, e.parts()};
  } catch (const ProviderError& e) {
    return {STEEP_PROVIDER, e.parts()};
  } catch (const OutOfMemoryError& e) {
    return {STEEP_MEMORY, e.parts()};
  } catch (const InterruptedError& e) {
    return {STEEP_INTERRUPTED, e.parts()};
  } catch (const Error& e) {
    return {STEEP_BUG, e.parts()};
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::length_error&) {  // longer than a vector can be
    return no_memory();
  } catch (const std::exception& e) {
    return {STEEP_BUG, {.what = failure, .received = e.what()}};
  } catch (...) {
    return {STEEP_BUG, {.what = failure}};
  }
}

}  // namespace steep
