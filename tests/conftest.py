"""What every test and every process that a test starts has in its environment."""

import os

os.environ.update(
    # one thread: the models are tiny, and a second one costs more than it brings
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    # nothing is downloaded
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    # Triton warns once where this is not set
    TRITON_DEFAULT_FP_FUSION="1",
)

import torch  # noqa: E402  it heeds what is set above

if not torch.cuda.is_available():
    # Triton's kernels run on CPU tensors, if this is set before anything imports it
    os.environ["TRITON_INTERPRET"] = "1"
