// Which protobuf this binary calls.
#pragma once

namespace steep {

/// Throws ProviderError if protobuf's functions are those of another library than the one that this
/// binary was linked with. The loader takes a function from the program, or from a library that the
/// program links, before it looks into ours; messages of another version have another layout.
void require_own_protobuf();

}  // namespace steep
