"""The engine: a continuous-batching LLM server in small rooms."""
