"""Capture by PyTorch's tracer, Dynamo.

Raises ModelError on import where PyTorch's release is not one that the tests have run with.
"""

from steep.patching.torch_versions import require_tested

require_tested()
