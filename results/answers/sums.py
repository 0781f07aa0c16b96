"""All sums of two numbers below 100, each pair once: python results/answers/sums.py

In sums.jsonl the question is a prompt, in whole.jsonl a part of the text."""

import json
import random

random.seed(0)
with open('sums.jsonl', 'w') as sums, open('whole.jsonl', 'w') as whole:
    for n in range(100):
        for m in range(n, 100):
            a, b = random.sample([n, m], 2)
            question = f'What is {a} + {b}? '
            answer = str(a + b)
            print(json.dumps({'prompt': question, 'text': answer}), file=sums)
            print(json.dumps({'prompt': '', 'text': question + answer}), file=whole)
