import sys

from memcore.cli import main

if __name__ == "__main__":
    sys.exit(main())
