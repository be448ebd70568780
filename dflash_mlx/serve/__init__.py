"""The HTTP server: the APIs of OpenAI, Anthropic and Ollama over the engine's answers."""
