import sys
from pathlib import Path

# the shared evidence module lies beside these tests
sys.path.insert(0, str(Path(__file__).parent))
