"""A trained model as a file that other runtimes read: ONNX, or PyTorch without mixdim.

Knows nothing about training or data. `onnx` and `onnxruntime` are an extra: pip install 'mixdim[serve]'.
"""

from mixdim.serving.exporting import export

__all__ = ["export"]
