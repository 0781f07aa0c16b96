"""Let lm-evaluation-harness ask any checkpoint that the other commands read. All options are
lm-eval's.

    python -m anyorder.extras.lm_eval --model_args ckpt=out/ckpt.pt --limit 500 \\
        --tasks lambada_openai,hellaswag
    python -m anyorder.extras.lm_eval --model_args ckpt=out/ckpt.pt,order=random,n_orders=16 \\
        --tasks hellaswag
    python -m anyorder.extras.lm_eval --model_args ckpt=out/ckpt.pt,order=margin,n_steps=32 \\
        --tasks gsm8k --output_path out/lm_eval
    python -m anyorder.extras.lm_eval --model_args ckpt=out/ckpt.pt \\
        --include_path YOUR_TASKS --tasks your_task
    torchrun --standalone --nproc_per_node=8 -m anyorder.extras.lm_eval \\
        --model_args ckpt=out/ckpt.pt --tasks wikitext
    python -m anyorder.extras.lm_eval ls tasks

Unless told otherwise, --model is aogpt, --batch_size 16 and --device auto. --model_args are
NAME=VALUE with commas:

ckpt          a checkpoint: a path, hf:OWNER/REPO/path.pt, or masked:FOLDER, a masked model of
              others
weights       'ema' or 'raw'; by default the EMA if the file has one
dtype         'float32', 'bfloat16' or 'auto'
device, batch_size   in place of --device and --batch_size
order         'l2r', the default for all that is asked, 'random', 'own', or another that --order of
              sample.py takes. The model's own choice, as 'margin', is for tasks that write. A
              continuation is read one token a step, whatever n_steps says
seed          what is drawn for a request is a function of the seed and of the request

how likely a text is: loglikelihood, loglikelihood_rolling, multiple_choice

n_orders      orders in which a continuation is read, its context first; the nats are their mean

what is written: generate_until. What a task or --gen_kwargs says wins

n_steps       passes of a stretch; by default one for each token
temperature   0, the default, takes the most likely token. do_sample=True without a temperature
              is 1
top_k, top_p, min_p, presence_penalty, cfg_scale, schedule, unmask   as in sample.py
context       tokens that a stretch reads of a text longer than the model; by default half of
              block_size

Whether a continuation is greedy, the acc of last words, is decided in the first order. For the
bound of a network with a masked loss it is decided by the tokens that the first draw masks. lm-eval
puts end-of-text before a text without a context. Here the first token of such a text follows
[None], as in training. --apply_chat_template is for masked models of others
whose tokenizer has a template."""

import importlib.util
import os
import sys

from anyorder.machine.terminal import one_line_errors

# in place of hf, 1 and cuda:0
DEFAULTS = ['--model', 'aogpt', '--batch_size', '16', '--device', 'auto']


def arguments(argv):
    """Return the command line of lm-eval that is meant.

    With a file, --config, all is as the file and the command line say."""
    if argv[:1] in (['ls'], ['validate']):
        return argv
    if argv[:1] == ['run']:
        argv = argv[1:]
    has_file = any(arg.startswith(('-C', '--config')) for arg in argv)
    defaults = [] if has_file else DEFAULTS
    return ['run', *defaults, *argv]  # the last value of an option counts


def main(argv):
    asks_for_help = '--help' in argv or '-h' in argv
    if asks_for_help:
        print(__doc__.strip(), end='\n\n', flush=True)
        if importlib.util.find_spec('lm_eval') is None:
            print('lm-eval has more options: pip install -r requirements-extra.txt')
            return
    os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ['python -m anyorder.extras.lm_eval', *arguments(argv)]
    if asks_for_help:  # without torch, which takes seconds
        return cli_evaluate()
    import anyorder.extras.lm_eval.harness  # noqa: F401  (which makes the model known)
    from anyorder.machine.processes import end_processes

    cli_evaluate()
    end_processes()


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(sys.argv[1:])
