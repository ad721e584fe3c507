"""Capture by public interfaces only, for releases of PyTorch that the tests have not run with.

``torch.compile`` provides graphs, ``functorch.compile`` makes them functional and differentiates
them, ``torch.export`` and ``torch.onnx.export`` convert them to ONNX. Nothing here may import
``steep.torch_internals``: its names may be missing in another release, or mean something else.
"""
