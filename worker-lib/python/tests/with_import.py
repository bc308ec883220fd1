"""Runs a script after `import switchml.torch`: torch before 2.5 finds no backends by itself.

Newer torch looks for the backend while that imports it.
"""

import runpy
import sys
from pathlib import Path

import switchml.torch

script = Path(__file__).parent / sys.argv[1]
# Runs the script as if Python had been started with it.
sys.argv = [str(script), *sys.argv[2:]]
sys.path[0] = str(script.parent)
runpy.run_path(str(script), run_name="__main__")
