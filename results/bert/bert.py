"""Train a BERT that solves puzzles, by transformers' own code.

    python results/bert/bert.py --dataset=sudoku4 --out_dir=out/bert

Only the masks are ours: clues stay, and of the blanks of a row a uniform number is masked."""

import sys
from functools import partial

sys.path.append('.')  # the project's folder, from which it is run

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from anyorder.datasets import open_split
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.tokenizers import get_tokenizer, one_of
from configurator import configure

dataset = 'sudoku4'  # a set of puzzles
out_dir = 'out/bert'  # the folder to write
n_layer = 4
n_head = 4
n_embd = 64  # width; the feed-forward layers are four times as wide
dropout = 0.1
batch_size = 64
max_iters = 1500
learning_rate = 2e-3  # AdamW's, after 100 updates; a cosine leads from there to 0
dtype = 'float32'  # 'float32' or 'bfloat16', of the products
seed = 1337

SPECIAL = {
    'pad_token': '[PAD]',
    'cls_token': '[CLS]',
    'sep_token': '[SEP]',
    'mask_token': '[MASK]',
    'unk_token': '[UNK]',
}


def main(config):
    from transformers import Trainer, set_seed

    split, meta = open_split('data', config.dataset, 'train')
    val, _ = open_split('data', config.dataset, 'val')
    symbols = get_tokenizer(meta.tokenizer)
    tokenizer = make_tokenizer(symbols.texts, split.packed.shape[1] + 2)
    rows = as_rows(split, symbols, tokenizer)
    model = make_bert(config, tokenizer)
    n_parameters = model.num_parameters()
    print(f'{config.dataset}: {len(rows):,} puzzles; {n_parameters:,} parameters', flush=True)

    collate = partial(mask_blanks, mask_id=tokenizer.mask_token_id)
    val_rows = as_rows(val, symbols, tokenizer)
    trainer = Trainer(model, training_arguments(config), collate, rows, val_rows)
    trainer.train()
    set_seed(config.seed)  # the masks of the validation are the same after any training
    loss = trainer.evaluate()['eval_loss']
    print(f'validation {loss:.4f} nats a masked token')
    model.save_pretrained(config.out_dir)
    tokenizer.save_pretrained(config.out_dir)


def make_tokenizer(texts, n_positions):
    """Return transformers' tokenizer: a token for each of `texts`, between [CLS] and [SEP]."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {text: i for i, text in enumerate([*SPECIAL.values(), *texts])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(one_of(texts)), 'isolated')
    tokenizer.decoder = decoders.Fuse()
    ends = [(text, ids[text]) for text in ('[SEP]', '[CLS]')]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=n_positions, **SPECIAL
    )


def as_rows(split, symbols, tokenizer):
    """Return rows (ids, fixed), (N + 2,) each, of puzzles. Clues, [CLS] and [SEP] are fixed."""
    tokens, given = all_blocks(split, split.packed.shape[1])
    texts = [symbols.decode(row) for row in tokens.tolist()]
    ids = torch.tensor(tokenizer(texts)['input_ids'])
    return TensorDataset(ids, F.pad(given, (1, 1), value=True))


def mask_blanks(rows, mask_id):
    """Return the batch that transformers' Trainer makes of rows (ids, fixed).

    Of the n tokens of a row that are not fixed k random ones are masked, k uniform from 1 to n.
    Labels are the ids that were there, or -100, which no loss reads."""
    ids, fixed = map(torch.stack, zip(*rows))
    n = (~fixed).sum(1, keepdim=True)
    drawn = (torch.rand(n.shape) * n).long()
    k = 1 + torch.minimum(drawn, n - 1)  # a float32 below 1 times 81 may be 81
    rank = torch.rand(ids.shape).masked_fill(fixed, 2).argsort(1).argsort(1)
    is_masked = rank < k
    return {
        'input_ids': ids.masked_fill(is_masked, mask_id),
        'labels': ids.masked_fill(~is_masked, -100),
    }


def make_bert(config, tokenizer):
    """Return a BERT with random weights for texts as long as the tokenizer allows."""
    from transformers import BertConfig, BertForMaskedLM, set_seed

    set_seed(config.seed)
    network = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.n_embd,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        intermediate_size=4 * config.n_embd,
        max_position_embeddings=tokenizer.model_max_length,
        type_vocab_size=1,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        # as BERT's at its width: smaller weights learn later
        initializer_range=0.02 * (768 / config.n_embd) ** 0.5,
    )
    return BertForMaskedLM(network)


def training_arguments(config):
    from transformers import TrainingArguments

    return TrainingArguments(
        config.out_dir,
        seed=config.seed,
        max_steps=config.max_iters,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=250,
        learning_rate=config.learning_rate,
        lr_scheduler_type='cosine',
        warmup_steps=100,
        weight_decay=0.01,
        use_cpu=not torch.cuda.is_available(),
        bf16=config.dtype == 'bfloat16',
        logging_steps=100,
        save_strategy='no',
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=not sys.stderr.isatty(),
    )


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
