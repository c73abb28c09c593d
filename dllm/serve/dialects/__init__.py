"""Forms of requests and replies: OpenAI's, Anthropic's, Ollama's, read into one request and written from one stream."""
