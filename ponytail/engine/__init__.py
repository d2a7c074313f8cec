"""The engine: scheduler, KV cache, one thread.  No HTTP, no JSON, no asyncio, no llama.cpp."""
