import sys
from pathlib import Path

# the module that makes the sample reports lies beside these tests
sys.path.insert(0, str(Path(__file__).parent))
