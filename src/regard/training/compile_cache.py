"""The compile cache: the folder of torch's compiled code, one for each torch version and CPU instruction set.

    $REGARD_CACHE/compiled/torch-2.13.0-avx512-1f2e3d4c/

torch itself keeps one folder for all CPUs that share a disk or an image, and code compiled for another CPU has ended
runs with a segmentation fault. If TORCHINDUCTOR_CACHE_DIR is set, that folder is used.
"""

import os
from hashlib import sha256
from pathlib import Path

import torch

from regard.files.content_cache import cache_dir
from regard.native.library import processor_features

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def compile_cache_folder() -> Path:
    """The folder for this torch and this CPU, as torch sees it: it may be configured to use fewer instructions."""
    capability = torch.backends.cpu.get_cpu_capability()
    limits = [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "CXX")]
    key = sha256("\0".join([processor_features().decode(errors="replace"), capability, *limits]).encode()).hexdigest()
    return cache_dir(None) / "compiled" / f"torch-{torch.__version__}-{capability.lower()}-{key[:8]}"


def use_compile_cache() -> None:
    """Make torch use this compile cache, unless the user has chosen a folder or ours cannot be created."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import, needed only to compile

    if os.environ.get(VARIABLE) not in (None, "", default_cache_dir()):  # torch writes its default there too
        return
    folder = compile_cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError:
        return
    if about.st_uid == os.getuid() and not about.st_mode & 0o022:  # cached code is executed: only ours is safe
        os.environ[VARIABLE] = str(folder)
