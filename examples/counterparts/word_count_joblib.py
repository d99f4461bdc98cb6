"""Count words, with joblib."""

from collections import Counter

from joblib import Parallel, delayed

TEXTS, WORDS = 200, 2_000


def words_of(text):
    return Counter(text.split())


def count_words(parallel, texts):
    return sum(parallel(delayed(words_of)(text) for text in texts), Counter())


def main():
    texts = [" ".join(str(i * j % 97) for j in range(WORDS)) for i in range(TEXTS)]
    with Parallel(n_jobs=-1, return_as="generator") as parallel:
        counts = count_words(parallel, texts)
    assert counts == Counter(" ".join(texts).split())
    print(sum(counts.values()), "words,", len(counts), "different ones")


if __name__ == "__main__":
    main()
