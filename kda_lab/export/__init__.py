"""From a judged candidate to an exported kernel: compile gate, evidence, gates, an atomic swap into the package."""
