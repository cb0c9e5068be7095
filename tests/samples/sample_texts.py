"""Texts for the tests of the BERT sample."""
import random


def write_texts(folder, train, validation):
    """So many texts, whose label says whether they contain one of three words."""
    generator = random.Random(7)
    neutral, bad = "the a some green tall quiet river stone cloud walks sings waits today".split(), "awful nasty horrid".split()
    for split, count in (("train", train), ("val", validation)):
        texts, labels = [], []
        for _ in range(count):
            words, label = [generator.choice(neutral) for _ in range(generator.randint(3, 10))], generator.randint(0, 1)
            if label:
                words[generator.randrange(len(words))] = generator.choice(bad)
            texts.append(" ".join(words))
            labels.append(str(label))
        (folder / f"{split}_text.txt").write_text("\n".join(texts) + "\n")
        (folder / f"{split}_labels.txt").write_text("\n".join(labels) + "\n")
    (folder / "mapping.txt").write_text("0\tfine\n1\trude\n")
