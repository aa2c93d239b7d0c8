import sys
from pathlib import Path

from hostile import write

print(write(Path(sys.argv[1])))
