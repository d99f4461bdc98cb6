"""Count words: one item for each text, and all counts added up."""

from collections import Counter

import simpler_ref as sr

TEXTS, WORDS = 200, 2_000


def words_of(text):
    return Counter(text.split())


def count_words(w, texts):
    return sum(w.map(words_of, texts), Counter())


def main():
    texts = [" ".join(str(i * j % 97) for j in range(WORDS)) for i in range(TEXTS)]
    with sr.Worker() as w:
        counts = count_words(w, texts)
    assert counts == Counter(" ".join(texts).split())
    print(sum(counts.values()), "words,", len(counts), "different ones")


if __name__ == "__main__":
    main()
