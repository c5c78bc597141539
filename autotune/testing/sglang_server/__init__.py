"""A simulated SGLang server with DDTree speculative decoding, over real HTTP.

Run it as `python -m autotune.testing.sglang_server --model-path MODEL --port N`; the flags are
those of the real server, and everything that only a simulation needs is an environment variable
with the prefix `AUTOTUNE_SIM_`.  `docs/simulated-server.md` describes the surface, the
flags and the faults.
"""
