import sys
from pathlib import Path

# the module that writes the history lies beside these tests
sys.path.insert(0, str(Path(__file__).parent))
