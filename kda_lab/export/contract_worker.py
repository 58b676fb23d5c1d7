"""Child process of the export: import a candidate and print its CONTRACT as JSON.

Used where CONTRACT is computed, such as from the kernel's own table of schedules, so that declaration
and launch cannot disagree. Argument: the file. The candidate runs here, away from the exporting process.
"""

import json
import sys

from alone_worker import import_alone


def main() -> None:
    """Print the dictionary on the last line; a traceback and a non-zero exit when there is none."""
    contract = import_alone(sys.argv[1]).CONTRACT
    sys.stdout.write("\n" + json.dumps(contract, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
