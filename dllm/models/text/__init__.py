"""Text to ids and back: tokenizers, special ids, chat templates."""
