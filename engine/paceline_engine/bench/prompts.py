"""Forty prompts of many kinds: lengths 1 to several hundred tokens, scripts, code, digits."""

_PARAGRAPH = (
    "Continuous batching lets a request join the batch at any step. A request that ends leaves its "
    "place to the next one at once, so that the device never waits for the longest answer. "
)


def varied_prompts() -> list[str]:
    """Forty texts, always the same."""
    short = [
        "The capital of France is",
        "Once upon a time",
        "a",
        "2 + 2 =",
        "def fibonacci(n):\n",
        "SELECT name FROM users WHERE",
        "The quick brown fox jumps over the lazy dog. The quick brown fox",
        "ABC ABC ABC ABC ABC ABC",
        "In 1969, Apollo 11",
        "1 2 3 5 8 13 21",
        "Dear Sir or Madam,\n\nI am writing to",
        "Q: What is photosynthesis?\nA:",
        "Ingredients:\n- 200 g flour\n- 2 eggs\n",
        "Je m'appelle",
        "Der Zug nach München fährt um",
        "日本の首都は",
        "Привет, как",
        "🙂🙃🙂🙃 emoji are",
        "½ ② ③ fractions and circled digits",
        "{'name': 'Ada', 'age': 36, 'city':",
        "<html><body><h1>",
        "WARNING: do not",
        "\n\n\n",
        "    return self._value\n\n    def",
        "The first ten primes are 2, 3, 5, 7, 11, 13, 17, 19, 23 and",
        'She said: "I will never',
        "https://example.com/path?query=",
        "E = mc^2 means that",
        "To be, or not to be, that is",
        "Water boils at 100 degrees",
    ]
    chats = [
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}"
        "<|im_end|>\n<|im_start|>assistant\n"
        for question in (
            "What is the capital of Italy?",
            "Write a haiku about rain.",
            "List three uses of a hammer.",
            "Explain gravity to a child.",
            "Translate 'good morning' to Spanish.",
        )
    ]
    long = [_PARAGRAPH * times + "In short," for times in (1, 2, 4, 6, 8)]
    return short + chats + long
