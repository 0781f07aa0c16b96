"""How do tokenizers of others read and write a text? Each becomes a tokenizer.json, which the
package tokenizers reads: see choices.py for which there are."""
