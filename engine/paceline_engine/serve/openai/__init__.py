"""The OpenAI-compatible routes: bodies, rules, answers, errors."""
