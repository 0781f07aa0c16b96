"""bert.py of results/bert: what its BERT is trained on, and the folder that it writes."""

import numpy as np
import pytest
import torch

from anyorder.checkpoint import open_checkpoint
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizers import get_tokenizer
from configurator import configure
from results.bert import bert

pytest.importorskip('transformers')


def test_a_row_is_its_symbols_between_cls_and_sep_and_clues_are_fixed():
    tokenizer = bert.make_tokenizer('1234', 6)
    given = 1 << 15
    split = Split(np.array([[3, 0 + given, 2, 1 + given]], np.uint16), True)
    ((ids, fixed),) = bert.as_rows(split, get_tokenizer('sudoku4'), tokenizer)
    assert ids.tolist() == [1, 8, 5, 7, 6, 2]
    assert tokenizer.convert_ids_to_tokens(ids) == ['[CLS]', *'4132', '[SEP]']
    assert fixed.tolist() == [True, False, True, False, True, True]
    assert tokenizer.decode(ids, skip_special_tokens=True) == '4132'
    assert tokenizer.mask_token_id == 3


def test_masks_hide_a_uniform_number_of_blanks_and_nothing_else():
    torch.manual_seed(0)
    ids = torch.arange(10, 16)
    fixed = torch.tensor([1, 0, 0, 1, 0, 1]).bool()
    batch = bert.mask_blanks([(ids, fixed)] * 6000, mask_id=3)
    masked = batch['input_ids'] == 3
    assert torch.equal(batch['input_ids'], torch.where(masked, 3, ids))
    assert torch.equal(batch['labels'], torch.where(masked, ids, -100))
    assert not masked[:, fixed].any()
    # 1, 2 or 3 of 3 blanks, in 3 + 3 + 1 ways
    kinds, counts = masked[:, ~fixed].unique(dim=0, return_counts=True)
    assert len(kinds) == 7
    expected = torch.tensor([1 / 9, 1 / 9, 1 / 3])[kinds.sum(1) - 1] * 6000
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 22.5  # of 6 degrees: 0.1 %


def test_the_folder_is_a_masked_model_of_the_same_logits(tmp_path):
    tokenizer = bert.make_tokenizer('1234', 18)
    config = configure(vars(bert), ['--n_layer=2', '--n_head=2', '--n_embd=16'])
    network = bert.make_bert(config, tokenizer).eval()
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(f'masked:{tmp_path}')
    assert checkpoint.config.block_size == 16
    known = [6, 0, 15, 9]  # visited in this order; 3 4 1 2 stand there
    there = dict(zip(known, '3412'))
    text = ''.join(there.get(p, '[MASK]') for p in range(16))
    with torch.no_grad():
        by_hand = network(**tokenizer(text, return_tensors='pt')).logits[0, 1:17]
    order = known + [p for p in range(16) if p not in known]
    idx = torch.zeros(1, 16, dtype=torch.long)
    idx[0, known] = torch.tensor(checkpoint.tokenizer.encode('3412'))
    found = checkpoint.model().predict(idx, torch.tensor([order]), 4)[0]
    torch.testing.assert_close(found[:, 5:], by_hand[order[4:], 5:], rtol=1e-5, atol=1e-5)
    assert by_hand.std() > 0.1
    assert (found[:, :4] == -torch.inf).all()  # [PAD] to [MASK]


@pytest.mark.slow
def test_a_run_of_two_updates_writes_a_model_that_solves(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script(
        '-m',
        'anyorder.extras.puzzles',
        'make',
        'sudoku4',
        '--n_train=40',
        '--n_val=8',
        '--n_test=8',
    )
    sizes = ['--max_iters=2', '--batch_size=8', '--n_layer=1', '--n_head=1', '--n_embd=8']
    bert.main(configure(vars(bert), sizes))
    assert open_checkpoint('masked:out/bert').config.block_size == 16
