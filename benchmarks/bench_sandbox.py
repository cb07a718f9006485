"""What isolation and grading cost: the same as ``agentrl bench sandbox``, which an installed agentrl has too.

python benchmarks/bench_sandbox.py [--data FILE] [--quick] [--json]
"""

import sys

from agentrl.cli import main

if __name__ == "__main__":
    main(["bench", "sandbox", *sys.argv[1:]])
