"""Capture beside a release of PyTorch that the tests have not run with: by public interfaces only.

``torch.compile`` hands graphs over, ``functorch.compile`` makes them functional and differentiates
them, ``torch.export`` and ``torch.onnx.export`` say them in ONNX. Nothing here may import
``steep.torch_internals``: names in it may be gone there, or mean something else.
"""
