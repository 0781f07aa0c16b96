"""What surrounds the core, a room for each question, with its command:

    python -m anyorder.extras.NAME --help

    hub        a folder that transformers loads; reading such folders, and GPT-2
    lm_eval    lm-evaluation-harness asks a model; last words of LAMBADA
    masked     masked models of others, which --ckpt=masked:FOLDER names
    patterns   regular expressions that a text matches, which --pattern names
    pictures   curves of runs, replays of texts
    puzzles    sets of puzzles are made, and solved
    speed      texts and updates, timed; the cost of fewer passes, and of a run before it starts
    minimal    the paper in one file

Without a command are rules, by which a step chooses its blanks and a text is revised, tokenizers of
others, orders.py, lengths.py, by which a blank finds its length, and judge.py, which measures
samples. The core knows them by their names. It imports nothing here by a statement: it opens a room
where it is asked to."""
