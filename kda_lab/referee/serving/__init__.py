"""The serving A/B driver: a matrix of arms, concurrencies and rounds against OpenAI-compatible endpoints.

plan -> schedule -> load (stream, prompts) -> summary -> records -> claims; `driver` walks the matrix.
"""
