"""
Do the tests catch faults? Put small faults into a copy of the project, one at a time, and run the tests of the file.

    python tests/faults.py
    python tests/faults.py model likelihood --jobs=2

The words are parts of file names; without words all files have their turn. A fault is a text that stands in exactly one
statement of a file, and the text to put there; statements are read as ast.unparse writes them, so that comments, line
breaks and quotes do not matter. It is caught if a test fails, or hangs. The table says how many faults of each file
were caught, and which survived. The exit code is 1 if less than 90 % were caught. Takes some ten seconds a fault;
pytest does not collect it.
"""

import ast
import copy
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from anyorder.machine.terminal import one_line_errors, progress
from configurator import at_least, configure

INPUTS = 'parts of the names of the files that are made faulty'

jobs = 1  # faults that are tried at once, each by a process of its own
seconds = 180  # after which the tests hang


# by file: the names of the tests that must catch its faults, and the faults, each [text, what to put there]
# fmt: off
FAULTS = {}

FAULTS['model.py'] = 'test_model test_equalities test_answers test_apart', [
    ['reads.masked_fill(reads < self.begin, NONE)', 'reads'],
    ['order = order - parts.begin', 'pass'],
    ['sees & (key >= self.begin.unsqueeze(-1))', 'sees'],
    ['self.begin + n.gather(1, self.number)', 'n.gather(1, self.number)'],
    ['(parts.end - known).clamp(min=1)', 'parts.end - known'],
    ['size = parts.end - parts.begin', 'size = parts.end'],
    ['reads = self.visit.clamp(max=known) - 1', 'reads = self.visit.clamp(max=known - 1) - 1'],
    ['.masked_fill(reads == NONE, -1)', '.masked_fill(reads == NONE, 0)'],
    ['torch.minimum(known + 1, end)', 'known + 1'],
    ['torch.minimum(known + 1, end)', 'end'],
    ['torch.minimum(length, first).minimum(end - 1)',
     'length.minimum(end - 1)'],
    ['visit = self.first + torch', 'visit = self.known + torch'],
    ['(first > known) | ', ''],
    ['return (key < end) & (query >= 0)', 'return (key <= end) & (query >= 0)'],
    ['((key <= query) | (query >= known)) & (key < end)', '(key <= query) | (query >= known)'],
    ['((key <= query) | (query >= known)) & (key < end)',
     '(key < known) | (query >= known) & (key < end)'],
    ['end, known, cls', 'end, known + 1, cls'],
    ['cls.needs_mask or has_padding', 'has_padding'],
    ['cls.needs_mask or reaches_blanks', 'reaches_blanks'],
    ['needs_mask = True', 'needs_mask = False'],
    ['return key <= torch.minimum(query, known)', 'return key <= query'],
    ['self.target = self.read_position', 'pass'],
    ['return None if self.sees is None else super()', 'return super()'],
    ['end = (known + 1).clamp(max=T)', 'end = known.clamp(min=1, max=T)'],
    ['q.split(k.size(1), 1)', '[q]'],
    ['slots.reads == QUERY', 'slots.reads == QUERY - 1'],
    ['x = F.dropout(x, self.config.dropout, self.training)', 'pass'],
    ['F.dropout(self.c_proj(y), self.dropout, self.training)', 'self.c_proj(y)'],
    ['F.dropout(self.c_proj(x), self.dropout, self.training)', 'self.c_proj(x)'],
    ['self.dropout if self.training else 0.0', '0.0'],
    ['self.dropout if self.training else 0.0', 'self.dropout'],
    ['copy.deepcopy(model).eval()', 'copy.deepcopy(model)'],
    ['return logits.to(torch.promote_types(logits.dtype, torch.float32))', 'return logits'],
    ['>= self.n_real', '> self.n_real'],
    ['0.02 / (2 * self.config.n_layer) ** 0.5', '0.02 / self.config.n_layer ** 0.5'],
    ['.masked_fill(has_no_token, 0)', ''],
    ['nll * size / n_blanks', 'nll * n_blanks'],
    ['nll.masked_fill(scored >= parts.end, 0)', 'nll.masked_fill(scored > parts.end, 0)'],
    ['torch.minimum(visits, parts.end - 1)', 'None'],
    ['torch.where(visits < known, 0', 'torch.where(visits <= known, 0'],
    ['self.length = self.length[rows]', 'self.length = self.length[:len(rows)]'],
    ['self.k, self.v):', 'self.k,):'],
    ['min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))', 'self.decay'],
    ['return self.n_tokens or self.vocab_size', 'return self.vocab_size'],
    ['dtype = torch.promote_types(self.transformer.wte.weight.dtype, torch.float32)',
     'dtype = self.transformer.wte.weight.dtype'],
    ['self.lm_head.weight = self.transformer.wte.weight', 'pass'],
    ['bool((end < end.max()).any())', 'False'],
]

FAULTS['anyorder/seeds.py'] = 'test_seeds', [
    ['return torch.Generator().manual_seed(derive_seed(*names))',
     'return torch.Generator().manual_seed(derive_seed(names[0]))'],
    ['seed >> 32 << 32 | lower', 'seed'],
    ["int(f'{j:032b}'[::-1], 2)", 'j'],
    ['hashed(*beginning))', 'hashed())'],
    ['x ^= x >> 15', 'x ^= x >> 15 & x'],
    ['2654435761', '2654435760'],
    ['[hashed(seed) for seed in seeds]', '[hashed(seed % 2 ** 63) for seed in seeds]'],
    ['unsigned_shift(x, 27)', 'unsigned_shift(x, 28)'],
    ['(x >> n).bitwise_and_(2 ** (64 - n) - 1)', 'x >> n'],
    ['64 - n_bits)', '60 - n_bits)'],
    ['name = hashed(name)', 'name = 1'],
]

FAULTS['anyorder/networks.py'] = 'test_networks', [
    ['found.setdefault(field, value) != value', 'False'],
    ['of_word.items() <= others.items()', 'of_word.items() & others.items()'],
    ['if name not in of_word', 'if True'],
    ["f'{name}={others[name]}'", "f'{name}={int(others[name])}'"],
]

FAULTS['anyorder/orders.py'] = 'test_orders test_grids test_answers', [
    ['n_numbers, device=device, dtype=dtype', 'n_numbers, device=device, dtype=torch.float32'],
    ['u[:, -1:] < l2r_ratio', 'u[:, :1] < l2r_ratio'],
    ["uniform(keys.unsqueeze(1), 'order', torch", "uniform(keys[:1].unsqueeze(1), 'order', torch"],
    ['u[:, position % size]', 'u[:, position]'],
    ["stream(order.seed, 'order", "stream('order"],
    ['order.length or n', 'n'],
    ['n_numbers = n', 'n_numbers = n + 1'],
    ['n_numbers = self.family.n_numbers(n, self.parameter)', 'pass'],
    ['pair, order.gather(1, pair.flip(1))', 'pair, order.gather(1, pair)'],
    ['lambda n, n_swaps: 2 * n_swaps', 'lambda n, n_swaps: n_swaps'],
    ['view(len(u), n_swaps, 2)', 'view(len(u), 2, n_swaps).mT'],
    ['seed = own_seed', 'pass'],
    ['parameter = own_parameter', 'pass'],
    ['replace(order, seed=order.seed + k).draw', 'order.draw'],
    ['numbered_keys(seed, numbers)', 'numbered_keys(0, numbers)'],
    ["run.get('order_seed', 0)", "run.get('seed', 0)"],
    ["text += f'@{self.seed}'", 'pass'],
    ['numbered_keys(seed, numbers)', 'numbered_keys(seed, range(len(numbers)))'],
    ["tuple(run.get('shape') or ()) or None", "tuple(run.get('shape') or ())"],
    ['self.shape is None', 'False'],
    ["re.sub('@[0-9a-f]{12}', '', self.kept)", 'self.kept'],
    ["self.kind != 'listed' and", ''],
    ['len(self.parameter) > most', 'len(self.parameter) > n'],
    ['n_numbers > 0', 'self.drawn'],
    ['rank.argsort(stable=True)', 'rank.argsort()'],
    ['order.size(1) + part', 'part'],
    ['order >= n_visits.unsqueeze(1)', 'order > n_visits.unsqueeze(1)'],
    ['u[:, :n] >= level', 'u[:, :n] >= 0.5'],
    ['u[:, :n] >= level', 'u[:, :n] >= u[:, :1]'],
    ['parameter=None, seed=order.seed + k', 'parameter=None, seed=order.seed'],
    ['lambda n, K: int(K > 1)', 'lambda n, K: 0'],
]

FAULTS['anyorder/order_options.py'] = 'test_orders test_grids test_start', [
    ['sorted(positions) != list(range(len(positions)))', 'False'],
    ["if 'order' in options.given - options.typed and '.py:' in options.order:", 'if False:'],
    ["kept if number is None else f'{kept}:{number}'", 'kept'],
]

FAULTS['anyorder/grids.py'] = 'test_grids', [
    ['// shape[1]', '// shape[0]'],
    ['% shape[1]', '% shape[0]'],
    ['left[1:].rot90()', 'left[1:].rot90(-1)'],
    ['-(-W // size)', 'W // size'],
    ['of_squares.argsort(-1).argsort(-1)', 'u.argsort(-1).argsort(-1)'],
    ['(rank[:, square] +', '(square +'],
    ['not shape or math.prod(shape) != n', 'not shape'],
    ['hashlib.sha256(f.read())', 'hashlib.sha256(path.encode())'],
    ["inspect.signature(function).bind('u', 'n', 'parameter')", 'pass'],
    ['or x.dtype != torch.long', ''],
    ['order.to(u.device', 'u.argsort(-1'],
    ['if kept not in LOADED:', "if runpy.run_path('sub/mine.py') and kept not in LOADED:"],
]

FAULTS['anyorder/checkpoint.py'] = 'test_checkpoint test_equalities', [
    ['hashlib.blake2b(sizes.encode(), digest_size=16)', 'hashlib.blake2b(digest_size=16)'],
    ["'shadow_params': dict(ema.model.named_parameters())",
     "'shadow_params': dict(model.named_parameters())"],
    ["'num_updates': ema.n_updates", "'num_updates': 0"],
    ['dict(zip(names, weights))', 'dict(zip(sorted(names), weights))'],
    ['named(weights, names, list(raw_weights(checkpoint)))', 'named(weights, names)'],
    ["state = tie(state, *TIED, 'the checkpoint')", "state.pop('lm_head.weight', None)"],
    ['return model.eval()', 'return model'],
    ['norms.isfinite().tolist()', '(~norms.isnan()).tolist()'],
    ['if have != want:', 'if have > want:'],
    ["checkpoint.get('tokenizer', 'gpt2')",
     "checkpoint.get('config', {}).get('tokenizer', 'gpt2')"],
    ["self.entries.get('iter_num', '?')", "self.entries.get('iter_num', 0)"],
    ['flat.view(torch.uint8).numpy()', 'flat.float().numpy()'],
]

FAULTS['anyorder/generation/canvas.py'] = 'test_canvas test_drafts test_unmasking', [
    ["('known', 'n_prompt', 'n_drafts'", "('known', 'n_drafts'"],
    ['idx.clone()', 'idx'],
    ['order.clone()', 'order'],
    ["'tokens', *names, self.positions()", '*names, self.positions()'],
    ['keys=keys_of(seeds[r:r + 1])', 'keys=keys_of(seeds[:1])'],
    ["'n_steps', 'rows')", "'rows')"],
    ['self.n_steps = self.n_steps.index_put((part.rows,), part.n_steps)', 'pass'],
    ["order.kind in ('random', 'sorted_subset')", 'True'],
    ["order.kind in ('random', 'sorted_subset')", 'False'],
    ['self.known = self.known.index_put((part.rows,), part.known)', 'pass'],
    ['self.known[row] + column', 'self.known[row - 1] + column'],
    ['s >= 0 for', 's > 0 for'],
]

FAULTS['anyorder/generation/constraint.py'] = 'test_constraint', [
    ['self.starts[text] + place', 'place'],
    ['self.rows[text]', 'text'],
    ['part.rows.to(logits.device)[cells.row]', 'row'],
    ['masked_fill_(~may', 'masked_fill_(may'],
    ['if scores:', 'if True:'],
    ['if scores:', 'if False:'],
    ['may.shape != (len(logits), n_tokens)', 'may.size(-1) > n_tokens'],
    ['if may.dtype != torch.bool or ', 'if '],
    ['n_tokens not in (None, shape[1])', 'False'],
    ['p >= shape[0] or ', ''],
    [' or not allowed[p].any()', ''],
]

FAULTS['anyorder/generation/drawing.py'] = 'test_drawing test_own_law test_lossless', [
    ['scores: bool = False', 'scores: bool = True'],
    ['self.scores and self.temperature == 0', 'False'],
    ['self.scores and self.temperature == 0', 'self.temperature == 0'],
    ['p.cumsum(-1) - p >= top_p', 'p.cumsum(-1) >= top_p'],
    ['values if top_k else logits', 'logits'],
    ['is_short = p.sum(-1) < top_p', 'is_short = p.sum(-1) < 0'],
    ['[sums, rest], 1).to(dtype)', '[sums, rest], 1)'],
    ['right=True', 'right=False'],
    ['random_bits(keys, NOISE, position)', 'random_bits(keys, NOISE)'],
    ['random_bits(keys, NOISE, position)', 'random_bits(position)'],
    ['random_bits(cell_keys.unsqueeze(1), pairs)', 'random_bits(cell_keys.unsqueeze(1), pairs // 2)'],
    ['.neg_().log_().neg_()', '.neg_().log_()'],
    ['(-31))', '(-32))'],
    ['.clamp_(min=-1 + 2.0 ** (-24))', ''],
    ['logits = self.tempered(logits)', 'pass'],
    ['logits < least', 'logits <= least'],
    ['math.log(self.min_p)', 'self.min_p'],
    ['abs(self.presence_penalty)', 'self.presence_penalty'],
]

FAULTS['anyorder/generation/noise.py'] = 'test_lossless', [
    ['nonzero()[:, 0', 'nonzero()[1:, 0'],
    ['keys[new], position[new]', 'keys[new], position[:len(new)]'],
]

FAULTS['anyorder/generation/presence.py'] = 'test_presence', [
    ['torch.minimum(cells.visit, known[cells.row])', 'known[cells.row]'],
    ['torch.minimum(cells.visit, known[cells.row])', 'cells.visit'],
    ['since[cells.row] < n_known', 'since[cells.row] <= n_known'],
    ['alpha=-penalty', 'alpha=penalty'],
    ['visit < known.unsqueeze(1)', 'visit <= known.unsqueeze(1)'],
    ['.clamp(0, vocab_size - 1)', ''],
    ['if exempt is not None:', 'if False:'],
    ["'amin'", "'amax'"],
]

FAULTS['anyorder/generation/guidance.py'] = 'test_guidance test_simulated_gpu extras/test_masked', [
    ['n_slots = n_keys or n_slots', 'pass'],
    ['n_slots = n_keys or n_slots', 'n_slots = T'],
    ['n_visits = end', 'pass'],
    ['(visit + n_prompt) % n_visits', '(visit + n_prompt) % T'],
    ['known - n_prompt, first', 'known, first'],
    ['(start - n_prompt).clamp(min=0)', 'start'],
    ['(n_slots, n, n_keys), own', '(n_slots, n, n_keys), cache'],
    ['blank.lerp(x, 1 + scale)', 'blank.lerp(x, scale)'],
    ['torch.where(blank.isneginf(), x, mixed)', 'mixed'],
]

FAULTS['anyorder/generation/fill.py'] = 'test_own_law test_generation test_lossless test_equalities extras/test_frontier', [
    ['(len(order),), generator=generator, device=device)', '(len(order),), device=device)'],
    ['known_after[part.rows, min', 'known_after[torch.arange(len(part)), min'],
    ['yield (n_steps, n_new, part)', 'yield (n_steps + 1, n_new, part)'],
    ['left = part.n_blanks > 0', 'left = (part.n_blanks > 0).all() & (part.n_blanks > 0)'],
    ['unmasking.check_network(model.slots, model.config.block_size)', 'pass'],
    ['n_done += plan.number[i] + 1', 'n_done += plan.number[i]'],
    ['torch.where(is_running, plan.n_steps[i], part.n_steps)', 'plan.n_steps[i]'],
    ['if part.n_visits is not n_visits', 'if False'],
    ['passes.keep_slots(plan.kept[i])', 'pass'],
]

FAULTS['anyorder/generation/passes.py'] = 'test_own_law test_generation test_lossless test_equalities test_steps', [
    ['logits = self.drawing.tempered(logits)', 'pass'],
    ['self.drawing.tokens(logits, part.u[cells.row, position])', 'self.drawing.tokens(logits, part.u[cells.row, position - 1])'],
    ['token_logprob(logits, token)', 'token_logprob(logits / self.drawing.temperature, token)'],
    ['= own.v', '= own.k'],
    ['self.cache.length = n_slots', 'pass'],
    ['logits = None', 'pass'],
    ['bounds.n_steps[cells.row])', 'bounds.n_new[cells.row])'],
]

FAULTS['anyorder/generation/plan.py'] = 'test_steps test_generation test_unmasking', [
    ['known = first + part.n_drafts', 'known = first'],
    ['counts = n_targets.clamp(min=1)', 'counts = self.n_new'],
    ['torch.cat([cache.length.unsqueeze(0), self.kept[:-1]])', 'self.kept'],
    ['torch.minimum(ends, part.n_visits.unsqueeze(1))', 'ends'],
    ['n_left < n_rows', 'n_left == 0'],
    ['n_left <= n_rows // 2', 'n_left < n_rows'],
    ['min(round_up(keys, KEYS), n_cached)', 'round_up(keys, KEYS)'],
    ['part.n_steps + number.unsqueeze(1)', 'number.unsqueeze(1) + 0 * part.n_steps'],
    ['values = values[self.start[self.row] + self.column]', 'pass'],
    ['torch.where(is_real, values, table[self.row, position])', 'values'],
    ['self.is_real & chosen', 'chosen'],
    ['count.cumsum(0) - count', 'count.cumsum(0)'],
    ['if n_cached', 'if True'],
]

FAULTS['anyorder/generation/workspace.py'] = 'test_workspace test_simulated_gpu', [
    ['kept.n_rows >= B', 'True'],
    ['kept.n_positions >= N', 'True'],
    ['kept.memory.is_like(memory)', 'True'],
    ['most_rows = max(B, kept.n_rows)', 'pass'],
    ['if not memory.fits(most_rows, most_positions)', 'if False'],
    ['memory.look(kept.n_bytes)', 'memory.look()'],
    ['network.workspace = None', 'pass'],
    ['other.n_rows * other.n_positions <= whole.n_rows * whole.n_positions', 'True'],
    ['torch.inference_mode(False)', 'torch.no_grad()'],
    ['lent.clear()', 'pass'],
    ['vars(self.cache).clear()', 'pass'],
    ['place[:B, :N] = table', 'pass'],
    ['self.numbers[:, :numbers.size(1)].copy_(numbers)', 'numbers'],
]

FAULTS['anyorder/generation/memory.py'] = 'test_workspace', [
    ['n = 2 * self.n_passes * c.n_layer', 'n = 2 * c.n_layer'],
    ['n = 2 * self.n_passes * c.n_layer', 'n = self.n_passes * c.n_layer'],
    ['* self.cache.itemsize', ''],
    ['self.free += n_kept', 'pass'],
    ['needed > self.free', 'False'],
    ['- torch.cuda.memory_allocated(device)', ''],
    ['of_slot += size.keys * (1 + self.dtype.itemsize)', 'pass'],
    ['of_drawn += 32', 'pass'],
    ['of_one += self.dtype.itemsize', 'pass'],
    ['n_scored * of_one', '0'],
    ['if self.cache is None', 'if False'],
]

FAULTS['anyorder/machine/graphs.py'] = 'test_workspace test_simulated_gpu', [
    ['graph.replay()', 'pass'],
    ['pool=self.pool', 'pool=None'],
    ['stream=self.stream', 'stream=None'],
    ['self.recorded.move_to_end(key)', 'pass'],
    ['len(self.recorded) > self.most', 'False'],
]

FAULTS['anyorder/generation/revise.py'] = 'test_revise', [
    ['n_written + GROUPS - 1', 'n_written'],
    ['is_worst & (worst.values < 0) & rows', 'is_worst & rows'],
    ['(-unfit)', 'unfit'],
    ["'round', n_round)", "'round')"],
    ['.masked_fill(~written, 2)', ''],
    ['rank * GROUPS //', 'rank * (GROUPS - 1) //'],
    ['logits.amax(1) - written', 'logits.logsumexp(1) - written'],
]

FAULTS['anyorder/generation/scroll.py'] = 'test_scroll test_drafts test_revise', [
    ["seed = derive_seed(self.seed, 'stretch', start)", 'pass'],
    ['if start:', 'if True:'],
    ['if blank >= block_size:', 'if blank >= context:'],
    ['end = min(start + block_size, end_of_part)', 'end = end_of_part'],
    ['end = min(start + block_size, end_of_part)', 'end = min(start + block_size, len(self.tokens))'],
    ['now = self.n_steps + step[i]', 'now = step[i]'],
    ['self.order.remove(p)', 'pass'],
    ['drafts.append([text.n_steps + step[r], token])', 'drafts.append([step[r], token])'],
    ['self.written[rows[r]]', 'self.written[r]'],
    ['if not drafts or drafts[-1][1] != token', 'if not drafts'],
    ['position = part.order[row, visit]', 'position = visit'],
    ['text.drafts[text.start + i]', 'text.drafts[i]'],
    ['context or block_size // 2', 'context or block_size // 4'],
    ['self.tokenizer, first)', 'self.tokenizer)'],
    ['[self.length(row) is not None for', '[row.n_leading() < 0 for'],
    ['zip(rows, self.ran.tolist()', 'zip(range(len(rows)), self.ran.tolist()'],
    ['if p >= end', 'if p >= 0'],
    ['order.append(p - n_cut)', 'order.append(p)'],
    ['[first - n_cut, later - n_cut]', '[first, later - n_cut]'],
    ['for values in (self.tokens, self.known, self.step, self.logprob, self.drafts)',
     'for values in (self.tokens, self.known, self.step, self.logprob)'],
    ["derive_seed(self.seed, 'part')", 'self.seed'],
    ['has_stop(row.tokens, first', 'has_stop(row.tokens, 0'],
    ['if end < n', 'if False'],
    ['more and (not self.stops)', 'False'],
    ['if has_stop(row', 'if True or has_stop(row'],
    ['self.block_size or len(row.spans) > 1', 'self.block_size'],
    ['row.size > self', 'len(row.tokens) > self'],
    ['[start, min(stop, n)]', '[start, stop]'],
    ['return has_stop(tokens, first, n, ', 'return has_stop(tokens, first, n + 1, '],
    ['return any(', 'return all('],
    ['self.written[0] is not row or ', ''],
    ['reversed(drafts)', 'drafts'],
    ['since <= step', 'since < step'],
]

FAULTS['anyorder/generation/scores.py'] = 'test_generation', [
    ['.values - logits.logsumexp(-1, keepdim=True)', '.values - logits.amax(-1, keepdim=True)'],
    ['SCORES[score](float32_or_better(part))', 'SCORES[score](part)'],
]

FAULTS['anyorder/generation/winners.py'] = 'test_rules_of_unmasking', [
    ['torch.where((last == j).unsqueeze(2), sums, after)', 'after'],
    ['(score == other) & (column < other_column)', '(score == other)'],
    ['(with_it - both).exp()', '0.5'],
    ['2) + win.unsqueeze(2)', '2)'],
    ['(k - 1).clamp(min=0)', 'k.clamp(min=0)'],
]

FAULTS['anyorder/generation/rules.py'] = 'test_rules_of_unmasking test_steps test_workspace', [
    ["f'{super().graph_key} {self.block_length}'", 'super().graph_key'],
    ['(n + 1) * (1 - ranked) <= self.threshold', 'n * (1 - ranked) <= self.threshold'],
    ['entropy.cumsum(1) - entropy', 'entropy.cumsum(1)'],
    ['scatter(1, best, holds)', 'copy_(holds)'],
    ['0 < number < math.inf', '0 <= number < math.inf'],
    ['is_ready = (sure > self.threshold) & (n_stable >= N_STABLE)', 'is_ready = sure > self.threshold'],
    ['N_STABLE = 2', 'N_STABLE = 1'],
    ['(torch.arange(N, device=device) - n_prompt)', 'torch.arange(N, device=device)'],
    ['torch.where(logp > -torch.inf, logp.exp() * change, 0.0)', 'logp.exp() * change'],
    ['torch.where(is_below, kept + 1, 0)', 'kept + is_below'],
    ['(terms.sum(-1) < limit) & (last >= 0)', 'terms.sum(-1) < limit'],
    ['torch.where(last == step, kept, n_stable)', 'n_stable'],
    ['self.step.fill_(-1)', 'pass'],
    ['clamp(max=self.most)', 'clamp(max=self.most + 90)'],
    ['self.decay * part.order[cells.row, cells.visit]', 'self.decay * cells.visit'],
    ['(counts + 1).to', 'counts.clamp(min=1).to'],
    ['max(1, gap // 2)', 'gap // 2'],
    ['(i - start) % gap == 0', 'i % gap == 0'],
    ['= first + blank', '= blank'],
    ['uniform(part.keys[cells.row], DRAWN, bounds.n_steps[cells.row], position)', 'part.u[cells.row, position]'],
    ['passes.drawing.tempered(logits).softmax(-1)', 'logits.softmax(-1)'],
    ['rest = total - law.masked_fill(~chosen, 0).sum(1)', 'rest = 0 * total'],
]

FAULTS['anyorder/generation/options.py'] = 'test_options test_unmasking', [
    ["refuse_blocks('an order that is given')", 'pass'],
    ['if self.order_noise:', 'if False:'],
    ['lossless and self.policy in POLICIES', 'False'],
    ["self.unmask == 'binomial' and isinstance(self.schedule, str)", "self.unmask == 'binomial'"],
    ["self.unmask == 'binomial' and isinstance(self.schedule, str)", 'False'],
    ['unmasking = lossless or given', 'unmasking = given'],
    ['if self.revise else unmasking', 'if False else unmasking'],
]

FAULTS['anyorder/generation/schedules.py'] = 'test_unmasking test_generation', [
    ['end = min(start + length, n)', 'end = start + length'],
    ['max(1, share)', 'unmasking.n_steps'],
    ['unmasking.n_steps * end // n - unmasking.n_steps * start // n', 'unmasking.n_steps * (end - start) // n'],
    ['max(1, share)', 'max(0, share)'],
    ['[start + k for k in in_block]', 'in_block'],
    ['if 3 * k == 2 * n_steps:', 'if False:'],
    ["uniform(keys_of([seed]), 'unmask',", "uniform(keys_of([seed]), 'tokens',"],
    ['return 1 - k / n_steps', 'return 1 - (k + 1) / n_steps'],
    ['binomial_schedule(u[start:end], n_steps, unmasking.schedule)', "binomial_schedule(u[start:end], n_steps, 'linear')"],
    ['binomial_schedule(u[start:end],', 'binomial_schedule(u[:end - start],'],
    ['unmask_schedule(end - start, n_steps, unmasking.schedule)', 'unmask_schedule(end - start, n_steps)'],
    ['max(end, last + 1)', 'end'],
    ['any((a >= b for', 'any((a > b for'],
    ['stalls or ends[-1] != most', 'stalls'],
]

FAULTS['anyorder/generation/unmasking.py'] = 'test_options test_unmasking test_generation test_lossless', [
    ['type(length) is not int or length < 1', 'type(length) is not int or length < 0'],
    ['type(length) is not int or length < 1', 'length < 1'],
    ["refuse_blocks('a schedule of ends')", 'pass'],
    ['if unmasking.binomial', 'if False'],
    ['self.block_length > n', 'self.block_length >= n'],
    ['self.block_length > n', 'self.block_length > n + 1'],
    ['(known - part.n_prompt) % ', 'known % '],
    ['part.n_prompt) % self.block_length', 'part.n_prompt)'],
    ['torch.minimum(n_blanks, self.block_length - n_done)', 'self.block_length - n_done'],
    ['choice.start[cells.row] + choice.best', 'choice.best'],
    ['column < bounds.n_targets.unsqueeze(1)', 'column < T'],
    ['if slots.targets_in_keys', 'if False'],
    ['n_sure.clamp(min=1)', 'n_sure'],
    ['NOISE, bounds.n_steps[cells.row],', 'NOISE,'],
    ['bounds.n_steps[cells.row], position)', 'bounds.n_steps[cells.row], cells.visit)'],
    ['score >= self.threshold', 'score > self.threshold'],
    ['self.noise * gumbel_noise', '1.0 * gumbel_noise'],
    ['descending=True, stable=True', 'descending=True'],
    ['torch.finfo(u.dtype).tiny', '0.001'],
    ['n_new.clamp(max=self.window)', 'n_new.clamp(max=self.window + 1)'],
    ['passes.keep_slots(part.known + n_new)', 'passes.keep_slots(part.known + 1)'],
    ['was_draft & (token == draft)', 'token == draft'],
    ['leading.cumprod(1).sum(1)', 'leading.sum(1)'],
    ['torch.minimum(n_right + 1, bounds.n_targets)', 'n_right + 1'],
    ['cells.write(wrong_at, position + 1, torch.where(wrong, column, N))', 'pass'],
    ['torch.where(wrong, column, N)', 'column'],
    ['torch.minimum(wrong_at[row, position], wrong_at[row, position + 2])', 'wrong_at[row, position]'],
    ['torch.minimum(wrong_at[row, position], wrong_at[row, position + 2])', 'wrong_at[row, position + 2]'],
    ['misled = beside < column', 'misled = beside < N'],
    ['torch.where(misled & was_draft, draft', 'torch.where(misled, draft'],
    ['was_draft, draft, token)', 'was_draft, token, draft)'],
    ['self.n_targets(part, part.known, part.n_blanks) - n_new', '(self.n_targets(part, part.known, part.n_blanks) - n_new - 1).clamp(min=0)'],
]

FAULTS['anyorder/likelihood/lengths.py'] = 'test_lengths', [
    ['< 1e+300 for', 'for'],
    ['not isinstance(prior, tuple)', 'not prior'],
    ['known[p]][:NEAR]', 'known[p]]'],
    ['first + room', 'start + room'],
    ['(n[best[0]],', '(n[-1],'],
    ["blank', k)", "blank', 0)"],
    ['keys_of([seed])', 'keys_of([0])'],
    [' and self.weight(m)', ''],
    ['logp + weights.log()', 'logp - weights.log()'],
    ['cut = max(0,', 'cut = max(1,'],
    [', known, n_visits', ', ~known, n_visits'],
    ['known[0, starts[0]:]', 'known[0]'],
    ['tensor([start - cut for', 'tensor([start for'],
    ['n_right, n_visits)', 'n_right)'],
    ['n_visits=n_visits, picked', 'picked'],
    ['(starts - n_known + n_right)', '(starts - n_known)'],
    ['(sums / n).log()', 'sums.log()'],
    ["tokenizer.shown_ids(' ' + word)", 'tokenizer.shown_ids(word)'],
    ['counts[len(', 'counts[1 + len('],
    [')] += n', ')] += 1'],
    ['[drawn, *(j for j in best if j != drawn)]', '[drawn, *best]'],
]

FAULTS['anyorder/likelihood/continuations.py'] = 'test_continuations', [
    ['max(0, end - block_size)', 'max(0, first - block_size)'],
    ['first, most, n_visits=lengths, picked', 'first, most, picked'],
    ['column.argsort(stable=True).argsort()', 'column.argsort(stable=True)'],
    ["rpartition(' ')", "partition(' ')"],
    ['word and (ids[-n:] == word_ids)', 'word'],
]

FAULTS['anyorder/likelihood/ensemble.py'] = 'test_likelihood test_equalities', [
    ['own = nll[0].cpu().double()', 'own = nll[0].cpu()'],
    ['n_sampled = n_positions', 'n_sampled = (n_positions - 1)'],
    ['sizes.double()', 'torch.ones(n_sampled).double()'],
    ['(u * sizes).long()', '0 * sizes'],
    ['derive_seed(seed, group)', 'seed'],
    ['order[:i][u.argsort(1)]', 'order[:i][u.argsort(1)].sort(1).values'],
    ['members.masked_fill(beyond.unsqueeze(1), 0)', 'members'],
    ['mixed - members[:, 0]', 'mixed - members[:, :m].mean(1)'],
    ['(change * weights).sum()', 'change.sum() * weights.mean()'],
    ['torch.arange(B * K * i)', 'torch.arange(i).repeat(B * K)'],
    ['power < n), n]', 'power <= n)]'],
]

FAULTS['anyorder/likelihood/sides.py'] = 'test_sides', [
    ['own_and_fresh = nats[..., :n]', 'own_and_fresh = nats[..., 1:n + 1]'],
    ['fresh = nats[..., 1:n + 1]', 'fresh = nats[..., :n]'],
    ["derive_seed(seed, 'sides', b, k)", "derive_seed(seed, 'sides', k)"],
    ["derive_seed(seed, 'sides', b, k)", "derive_seed('sides', b, k)"],
    ['repeat(text, n_fresh)', 'repeat(texts[0], n_fresh)'],
    ["orders != [sample['order'] for sample in samples]", 'len(orders) != len(samples)'],
    ['(nats - kept).abs() / n_blanks', '(kept - nats) / n_blanks'],
    ['n_given, False)', 'torch.zeros_like(n_given), False)'],
]

FAULTS['anyorder/likelihood/sampled.py'] = 'test_sides', [
    ['i * n_all // n', 'i'],
    ['min(n, n_all) or n_all', 'n or n_all'],
    ['largest >= tokenizer.n_tokens', 'largest > tokenizer.n_tokens'],
    ['isinstance(way.unmasking, Lossless)', 'False'],
    ['value and (not is_whole)', 'value'],
    ['unmasking.binomial or getattr', 'getattr'],
    ["unmasking.binomial or getattr(unmasking, 'noise', 0)", 'unmasking.binomial'],
    ["way.order.law != 'one'", "way.order.law == 'random'"],
    ['n_blanks == sample', 'n_blanks >= sample'],
    ['step < 0 for step', 'step < 1 for step'],
]

FAULTS['anyorder/likelihood/estimates.py'] = 'test_estimates test_journal test_answers test_apart', [
    ['every[rank], name)', 'every[0], name)'],
    ['nats.mean(1), text, self.n_orders', 'nats[:, 0], text, self.n_orders'],
    ["derive_seed(self.c.seed, 'contexts', b)", "derive_seed(self.c.seed, 'contexts')"],
    ["derive_seed(self.c.seed, 'positions', block)", "derive_seed(self.c.seed, 'positions')"],
    ["derive_seed(self.c.seed, 'positions', block)", "derive_seed('positions', block)"],
    ['n_blanks, text.n_bytes', 'n_blanks, text.blocks.numel()'],
    ['text.by_block(nats), n_blanks', 'nats, text.n_blanks'],
    ["gain['stderr']", "self.row('', column, text)['stderr']"],
    ['ensemble_nll(-nats[:, :k])', 'ensemble_nll(-nats[:, -k:])'],
    ['list(chain.from_iterable(gather(list(scores.values()))))', 'list(scores.values())'],
    ['ImportanceWeighted.name in self.asked', 'self.name == ImportanceWeighted.name'],
    ['draw_orders(numbers, blocks', 'draw_orders(range(len(numbers)), blocks'],
    ['Batch.of(blocks, orders, given, self.known_l2r)', 'Batch.of(blocks, orders, given)'],
    ["f'{label} {derive_seed(order):x}'", 'label'],
    ['is_drawn(self.checkpoint.config.slots, self.order)',
     'self.checkpoint.config.slots.masked_loss'],
    ['config.n_orders if self.several else 1', 'config.n_orders'],
    ['several = False', 'pass'],
    ['nats.mean(0).std()', 'nats.mean(1).std()'],
    ['if self.n_orders == 1:', 'if False:'],
    ['draw_known(numbers, n_blanks, K, self.c.seed,', 'draw_known(numbers, n_blanks, K, 0,'],
    ['check_finite(self.nats(model, text.blocks, numbers, text.given))',
     'self.nats(model, text.blocks, numbers, text.given)'],
    ["gain = self.row('', nats[:, 0] - column, text)",
     "gain = self.row('', nats.mean(1) - column, text)"],
]

FAULTS['anyorder/likelihood/written.py'] = 'test_written test_answers', [
    ["drawn or (self.several and (not unmasking.adaptive)",
     'self.several and (not unmasking.adaptive'],
    ['(self.several and (not unmasking.adaptive))', 'self.several'],
    ['part.n_given,', 'part.n_given * 0,'],
    ['own_seeds, part.n_visits)', 'own_seeds)'],
    ['masked_fill(is_cut, 0)', 'masked_fill(is_cut, 1)'],
    ['kept.masked_fill(cut > 0, math.inf)', 'kept'],
    ['kept - nats[:, -1]', 'kept'],
]

FAULTS['eval_ppl.py'] = 'test_written test_eval_ppl', [
    ['of_one.get(way.one)', 'None'],
    ['of_one.get(way.one)', 'of_one.get(way.text)'],
    ["re.sub(':[\\\\d.]+$', '', text)", 'text'],
    ["of_ensemble['ensemble_block'] = int(width or 1)", 'pass'],
    ['N = block_size_of(config, checkpoint)', 'N = own'],
    ["'block_size': block_size_of(c, checkpoint)", "'block_size': checkpoint.config.block_size"],
    ["if 'own' in names:", 'if False:'],
    ['has_steps or drawing != PLAIN', 'has_steps'],
    ["self.said != '' or self.is_tempered", "self.said != ''"],
]

FAULTS['anyorder/likelihood/journal.py'] = 'test_journal', [
    ['evaluation.keys() | found.keys()', 'evaluation.keys()'],
    ['(*name, block) not in self.done', 'not any((key[-1] == block for key in self.done))'],
    ["text.split('\\n')[:-1]", "text.strip('\\n').split('\\n')"],
    ['torch.tensor(rows, dtype=torch.float64)', 'torch.tensor(rows).double()'],
    ['if self.path and rank == 0:', 'if self.path:'],
]

FAULTS['anyorder/likelihood/nll.py'] = 'test_likelihood extras/test_puzzles test_answers test_apart', [
    ['nll * ((parts.end - first)', 'nll * ((parts.end + first)'],
    ['Parts.of(nll, n_visits, begins)', 'Parts.of(nll, None, begins)'],
    ['Parts.of(nll, n_visits, begins)', 'Parts.of(nll, n_visits, None)'],
    ['n_visits=n_visits, begins=begins)', 'begins=begins)'],
    ['device=nll.device) < first', 'device=nll.device) <= first'],
    ['sums.append(nll.sum(-1, dtype=widest(model.device)))', 'sums.append(nll.sum(-1))'],
    ['numbered_keys(seed, block_numbers)', 'numbered_keys(seed, range(len(block_numbers)))'],
    ['(torch.arange(n_orders) + u) / n_orders', 'u'],
    ['share * n_blanks', 'share * (n_blanks - 1)'],
    ['columns=columns.to(order.device), n_visits=n_visits', 'columns=columns.to(order.device)'],
    ['if not nats.isfinite().all():', 'if nats.isnan().all():'],
    ['torch.arange(math.prod(shape[1:]))', 'torch.zeros(math.prod(shape[1:]), dtype=torch.long)'],
    ['with autocast(model.device, dtype):', "with autocast(model.device, 'float32'):"],
]

FAULTS['anyorder/likelihood/conditional.py'] = 'test_likelihood', [
    ['.sum(-1, dtype=widest(idx.device)))', '.sum(-1).double())'],
    ['torch.cat([order, rest])', 'order'],
    ['score_visits(model, idx, order, len(b), len(a))',
     'score_visits(model, idx, order, 0, len(a))'],
    ['torch.cat([b.sort().values, a.sort().values])', 'torch.cat([b, a])'],
    ['>= len(b)', '>= 0'],
    ['return -ensemble_nll(torch.stack(logprobs, -1))',
     'return torch.stack(logprobs, -1).mean(-1)'],
    ['keys_of([seed])', 'keys_of([0])'],
]

FAULTS['anyorder/tokens/arrays.py'] = 'test_arrays', [
    ["arrays.get(f'given_{s}', arrays.get('given'))",
     "arrays.get('given', arrays.get(f'given_{s}'))"],
    ['(part >= 0) & (part < N_IDS)', 'part < N_IDS'],
    ['(part >= 0) & (part < N_IDS)', 'part >= 0'],
    ['15 if marked else 16', '16'],
    ['if whole.any():', 'if False:'],
    ['if end is None:', 'if True:'],
    ['if largest >= n_tokens:', 'if largest > n_tokens:'],
    ['check_source_is_new(origin, kept)', 'pass'],
    ['old_kind == kind, force', 'True, force'],
]

FAULTS['anyorder/tokens/prompts.py'] = 'test_prompts test_writer test_lengths', [
    ['self.is_behind_rest(i) or not', 'not'],
    ['return [typed(prompt)]', 'return [prompt]'],
    ["\\\\n' if", "\\\\\\\\n' if"],
    ['-1 <= token < n_tokens', '-1 <= token <= n_tokens'],
    ['-1 <= token < n_tokens', '-2 <= token < n_tokens'],
]

FAULTS['anyorder/writer.py'] = 'test_writer', [
    ['if n > n_row or is_short', 'if is_short'],
    ['if n > n_row or is_short', 'if n > n_row'],
    ['template.length if template.unknown else len(tokens)', 'len(tokens)'],
    ['-nats.reshape(shape)', 'nats.reshape(shape)'],
    ['order=order, seed=seed, score=True, **options)', 'order=order, seed=seed, score=True)'],
    ['way.unmasking.check_network(slots, longest, way.drawing.scores)',
     'way.unmasking.check_network(slots, self.block_size)'],
    ['if way.drawing.scores', 'if False'],
    ['texts[i:i + n] for i in range(0, len(texts), n)',
     'texts[i::len(texts) // n] for i in range(len(texts) // n)'],
    ['templates * n', 'templates'],
    ['n_orders, own)', 'n_orders, seeds_of(seed, 1)[0])'],
    ['part = torch.tensor(answer)', 'part = torch.tensor(known)'],
    ['None if step is None else token', 'token'],
    ['if not all((any', 'if not any((any'],
]

FAULTS['anyorder/generation/way.py'] = 'test_writer', [
    ["return ('l2r', order)", "return ('random', order)"],
    ['drawing_in(options, score)', 'drawing_in({}, score)'],
    ['self.context < block_size', 'self.context <= block_size'],
]

FAULTS['anyorder/__init__.py'] = 'test_rooms', [
    ['if not ours.samefile(found):', 'if False:'],
    ["'model', 'configurator'", "'model',"],
]

FAULTS['anyorder/fast.py'] = 'test_fast test_compiled extras/test_solve', [
    ['self.n_slots + (len(visit) + n_more)', 'self.n_slots + visit.numel()'],
    ['(self.plain @ twice.T)[:, 0]', '(self.plain @ twice.T).sum(1)'],
    ['y = y + self.bias', 'pass'],
    ['sdpa_kernel(WITHOUT_CUDNN)', 'nullcontext()'],
    ['torch._dynamo.mark_dynamic(x, 0)', 'pass'],
    ['(take(q, answering), k, v)', '(q, k, v)'],
]

FAULTS['configurator.py'] = 'test_configurator', [
    ['(?<![^,:])~', '~'],
    ['(?=[/\\\\\\\\])', ''],
    ['home(arg)', 'arg'],
    ['isinstance(value, str) and key not in texts', 'isinstance(value, str)'],
    ['if key in texts:', 'if False:'],
    ["name = ','.join(parts[:n]).strip()", "name = ','.join(parts[:n])"],
    ['[name for name in found if name]', 'found'],
    ['[^,]*$', '.*'],
    ['range(len(parts), 1, -1)', 'range(2, len(parts) + 1)'],
    ['text.lower() in BOOLS', 'text in BOOLS'],
    ['value in (0, 1)', 'value == 1'],
    [".replace('\\ufeff', '')", ''],
]

FAULTS['anyorder/machine/files.py'] = 'test_files extras/test_pictures', [
    [".replace('\\ufeff', '')", ".removeprefix('\\ufeff')"],
    ['if os.path.islink(path) else path', 'if False else path'],
    ['dirname(real)', "dirname(path) or '.'"],
    ['(os.path.basename(path), os.path.basename(real))', '(os.path.basename(path),)'],
]

FAULTS['anyorder/likelihood/measured.py'] = 'test_measured extras/test_solve test_arrays test_answers test_apart', [
    ['if self.given is None or self.block is None', 'if self.given is None'],
    ['bool((self.given & (self.blocks != PADDING)).any())', 'True'],
    ['given[:, first:end] = False', 'given[:, first:first + 1] = False'],
    ["open_texts(path, prompt_key='auto')", 'open_texts(path)'],
    ['not tokens.marked and (not given.any())', 'True'],
    ['if self.given is not None:', 'if False:'],
]

FAULTS['anyorder/tokens/blocks.py'] = 'test_sets test_arrays test_answers test_training extras/test_puzzles', [
    ['len(tokens) - block_size + 1', 'len(tokens) - block_size'],
    ['np.arange(n_blocks) * n // n_blocks', 'np.arange(n_blocks)'],
    ['columns < ends[:, None]', 'columns <= ends[:, None]'],
    ['columns = starts[:, None]', 'columns = 1 + starts[:, None]'],
    ['(n_visits < blocks.size(1)).any()', '(n_visits < blocks.size(1)).all()'],
    ['given_first(order, given, n_visits, left_to_right)',
     'given_first(order, given, None, left_to_right)'],
    ['n_visits, left_to_right)', 'n_visits)'],
    ['return self.n_visits.sum()', 'return self.idx.numel()'],
    ['self.idx.clamp(min=0)', 'self.idx'],
]

FAULTS['anyorder/tokens/sources.py'] = 'test_data', [
    ['enumerate(rows(), 1)', 'enumerate(rows())'],
    ['keys != first or not', 'not'],
    [' or not row.keys() >= {*keys}', ''],
    ['if None in row', 'if False'],
    ['csv.DictReader(f, strict=True)', 'csv.DictReader(f)'],
    ['sha.update(os.fsencode(os.path.relpath(file, path)))', 'pass'],
    ["{'train', val} <= {*names}", "{'train', 'val'} <= {*names}"],
    ["names[0] if len(names) == 1 else 'train'", 'names[0]'],
    ['sets.values()', '[*sets.values()][:1]'],
    ["os.environ['HF_HUB_OFFLINE'] = '1'", 'pass'],
]

FAULTS['anyorder/tokens/tokenizers.py'] = 'test_tokenizers test_answers', [
    ['type_of(tokenizer.n_tokens, 15)', 'type_of(tokenizer.n_tokens, 16)'],
    ['parts[0] |= mark', 'pass'],
]

FAULTS['anyorder/tokens/sets.py'] = 'test_sets test_answers', [
    ['(blocks >= self.mark) | padding', 'blocks >= self.mark'],
    ['tokens - padding * self.mark', 'tokens'],
    ['np.cumsum(sizes) - sizes', 'np.cumsum(sizes)'],
    ['np.diff(ends, prepend=last)', 'np.diff(ends, prepend=0)'],
    ['15 if meta.given', '16 if meta.given'],
    ['min(block_size, self.longest)', 'block_size'],
    ['if longest >= block_size', 'if longest > block_size'],
    ['starts + block_size, ends) - 1', 'starts + block_size + 1, ends) - 1'],
    ['len(split.packed) - last - 1', 'len(split.packed) - last'],
    ['prepend=last).max() - 1', 'prepend=-1).max() - 1'],
]

FAULTS['anyorder/machine/surroundings.py'] = 'test_surroundings', [
    [" and there.get('MASTER_ADDR')", ''],
    ["max(found['RANK'], found['LOCAL_RANK'])", "found['RANK']"],
    ["'[0-9]+', there", "'.*', there"],
]

FAULTS['anyorder/machine/terminal.py'] = 'test_terminal test_surroundings', [
    ['if self.holds_results and self.error', 'if self.error'],
    ['self.error and (not reader_left)', 'self.error'],
    ["open(os.devnull, 'w') if stream is None else stream", 'stream'],
    ['if is_closed or ', 'if '],
    [' or not hasattr(self.stream, method)', ''],
    ['while number <= 2:', 'while number < 2:'],
    ['os.set_inheritable(number, number <= 2)', 'pass'],
    ['checkpoints and (not surroundings())', 'True'],
]

FAULTS['anyorder/training/chart.py'] = 'test_chart', [
    ['self.sent < entry', 'self.safe <= entry'],
    ["entry.get('iter', 0) <= iter_num", "entry.get('iter', 0)"],
    ['if int(i) <= folder.saved:', 'if True:'],
    ['if folder.mine:', 'if True:'],
    ["if kept.get('run') == run_id:", 'if kept:'],
    ['self.sent = begun.step - 1', 'self.sent = begun.step'],
    ["if not getattr(begun, 'offline', True):", 'if True:'],
    ['is_known and (not is_no_network)', 'is_known'],
    ["if getattr(begun, 'disabled', False):", 'if False:'],
    ["getattr(wandb, 'Error', ValueError)", 'wandb.Error'],
    ['self.safe = self.sent', 'pass'],
    [" if name != 'environment'", ''],
]

FAULTS['anyorder/training/run_folder.py'] = 'test_run_folder test_chart test_best', [
    ['[0-9]{7,}', '[0-9]{7}'],
    ['is not None], key=number_of)', 'is not None])'],
    ['number_of(name) <= last', 'name <= kept'],
    ['self.log_path, self.chart_path', 'self.log_path'],
    ['if not math.isfinite(nats)', 'if False'],
]

FAULTS['anyorder/machine/parts.py'] = 'test_parts', [
    ['if os.path.basename(name) != name:', 'if False:'],
    ['if os.path.getsize(path) < end:', 'if False:'],
    ['.tolist() != [mark]', '.tolist() == []'],
    ['if end != len(like):', 'if False:'],
    ['[end, *like.shape[1:]]', '[offsets[0], *like.shape[1:]]'],
    ['if not os.path.exists(folder):', 'if False:'],
    ['weights_only=True', 'weights_only=False'],
    ['f.seek(begin)', 'pass'],
    ['assert broken is None, broken', 'pass'],
    ['if first < end:', 'if True:'],
    ['chunk[first - offsets[0]', 'chunk[0'],
]

FAULTS['anyorder/training/sharding.py'] = 'test_sharding', [
    ['preserve_rng_state=draws', 'preserve_rng_state=False'],
    ['again = True', 'pass'],
    ['for unit in (*model.transformer.h, model)', 'for unit in model.transformer.h'],
    ['block.__class__ = RecomputedBlock', 'pass'],
    ['model.set_requires_all_reduce(False)', 'pass'],
    ['(world_size // n, n)', '(n, world_size // n)'],
]

FAULTS['anyorder/training/start.py'] = 'test_train test_resume test_torchrun test_start test_processes extras/test_gpt2 test_grids', [
    ["load_moments(optimizer, saved['state'])", 'optimizer.load_state_dict(saved)'],
    ["state.ema.n_updates = entries['ema_model']['num_updates']", 'pass'],
    ['if not order.wants_shape:', 'if True:'],
    ["given['order'] = whole['order']", 'pass'],
    ["config | written_out(config, {}) | {'init_from'", "config | {'init_from'"],
    ["saved['order'] = Order.of('own', run).kept", 'pass'],
    ["run.get('muon_learning_rate', rate or MUON_RATE)", 'rate or MUON_RATE'],
    ["saved['save_memory'] = ','.join(savings)", 'pass'],
    ['rate or saved_rate or MUON_RATE', 'rate or MUON_RATE'],
    ["gather(os.path.isfile(os.path.join(out_dir, 'ckpt.pt')))",
     "[os.path.isfile(os.path.join(out_dir, 'ckpt.pt'))]"],
    ["weights or 'scratch'", "'scratch'"],
    ['if name in typed:', 'if True:'],
    ['given |= overruled(given, fixed, config.typed)', 'overruled(given, fixed, config.typed)'],
    ['if rest:', 'if False:'],
    ['return earlier', 'pass'],
    ['digest(model, checkpoint.config)', 'digest(model)'],
    ['-(-c.eval_iters * c.batch_size // batch_size)', 'c.eval_iters'],
    ['if n <= warmup:', 'if n < warmup:'],
    ['if decay <= warmup:', 'if decay < warmup:'],
    ['c.lr_decay_iters or n', 'c.lr_decay_iters'],
    ['if c.min_lr == c.learning_rate:', 'if False:'],
]

FAULTS['anyorder/training/muon.py'] = 'test_training test_sharding', [
    ['n_matrices = 3', 'pass'],
    ['math.sqrt(max(1, A / B))', '1.0'],
    [' // n_matrices', ''],
    ["p.mul_(1 - group['lr'] * group['weight_decay'])", 'pass'],
    ['update = whole(', 'update = ('],
    ["p.grad.lerp(momentum, group['momentum'])", 'momentum'],
    ["lerp_(p.grad, 1 - group['momentum'])", 'copy_(p.grad)'],
]

FAULTS['anyorder/training/update.py'] = 'test_training test_devices extras/test_puzzles test_train test_resume test_grids test_answers', [
    ['lr=muon_learning_rate, weight_decay=weight_decay', 'lr=muon_learning_rate, weight_decay=0.0'],
    ['limit or math.inf', 'math.inf'],
    ['derive_seed(config.seed, state.iter_num, micro)', 'derive_seed(config.seed, state.iter_num)'],
    ['derive_seed(config.seed, state.iter_num, micro)', 'derive_seed(config.seed, micro)'],
    ['loss / n_iters', 'loss'],
    ['mean_loss += nll.detach()', 'mean_loss = len(micros) * nll.detach()'],
    ['mean_blanks.to(nll.dtype) / len(micros)', 'mean_blanks.to(nll.dtype)'],
    ['nll.sum() / mean_blanks.to(nll.dtype)', 'nll.sum() / nll.numel()'],
    ['sum_over_processes(sum((batch.n_blanks.sum() for batch in batches)',
     'sum((batch.n_blanks.sum() for batch in batches'],
    ['n_blanks = given_first(order, given, n_visits)', 'n_blanks = given_first(order, given)'],
    ['optimizer.zero_grad(set_to_none=True)', 'pass'],
    ["lr * group['lr_ratio']", 'lr'],
    ["config['lr_decay_iters'] or config['max_iters']", "config['max_iters']"],
    ['self.totals.zero_()', 'pass'],
    ['n_known=batch.n_given + (u', 'n_known=(u'],
    ['autocast(state.device, config.dtype,', "autocast(state.device, 'float32',"],
    ['.div_(processes()[1])', ''],
    ['range(rank, config.gradient_accumulation_steps, world_size)',
     'range(config.gradient_accumulation_steps)'],
    ['mean_blanks.to(nll.dtype) / len(micros)',
     'mean_blanks.to(nll.dtype) / config.gradient_accumulation_steps'],
    ['law.draw(B', 'Order().draw(B'],
    ['(loss + norm).isfinite()', 'loss.isfinite()'],
]

FAULTS['anyorder/training/best.py'] = 'test_best', [
    ['if value < self.value', 'if value <= self.value'],
    ['0 < self.patience <= self.n_waited', '0 < self.patience < self.n_waited'],
    ["kept.get('loss') == self.loss", "kept"],
    ['best.compares = before == measured', 'best.compares = True or before == measured'],
    ['if best.compares', 'if True'],
    ["[val_hash, n_blocks, Order.of('own', options).kept, weights, documents]",
     "[val_hash, Order.of('own', options).kept, weights, documents]"],
    ["[val_hash, n_blocks, Order.of('own', options).kept, weights, documents]",
     "[val_hash, n_blocks, Order.of('own', options).kept, weights]"],
    ['-(-config.max_iters // config.eval_interval)', 'config.max_iters // config.eval_interval'],
    ['0 < config.max_iters <= config.eval_interval', '0 < config.max_iters < config.eval_interval'],
    ['if not masked_loss', 'if True'],
    ['shares_of([*weights.values()]).round(9).tolist()', 'weights.values()'],
]

FAULTS['anyorder/tokens/mixture.py'] = 'test_mixture', [
    ['weight <= 0', 'weight < 0'],
    ['0 < len(lacking) < len(weights)', '0 < len(lacking) <= len(weights)'],
    ['tokenizers[0].identity != tokenizers[1].identity', 'False'],
    ['form_of(kind) != form_of(other)', 'False'],
    ['shares_of(self.shares / of_row)', 'self.shares'],
    ['split.lengths.clip(max=longest).mean()', 'longest'],
    ['torch.where(given & (tokens != PADDING), tokens + self.mark, tokens)', 'tokens'],
    ['np.maximum(expected.round().astype(np.int64), is_there)', 'expected.round().astype(np.int64)'],
    ['share * n * c / c.sum()', 'share * c'],
]

FAULTS['anyorder/generation/likeliest.py'] = 'test_likeliest extras/test_masked', [
    ['replace(drawing, temperature=1.0)', 'drawing'],
    ['best.values - law.logsumexp(-1, keepdim=True)', 'best.values'],
    ['token = best.indices[:, 0]', 'token = best.indices[:, -1]'],
    ['if nats > -math.inf', 'if True'],
    ['0 <= k <= n_tokens', '0 <= k <= n_tokens + 1'],
    ['type(k) is not int or ', ''],
]

FAULTS['anyorder/training/validation.py'] = 'test_training test_apart extras/test_puzzles test_train test_sharding test_answers', [
    ['n_given=n_given)', 'n_given=0 * n_given)'],
    ['config.batch_size, config.dtype)', 'config.batch_size)'],
    ['batch.rows(own)', 'batch.rows(torch.arange(len(own)))'],
    ['apart(batch, given, begins, law.law)', 'batch._replace(begins=begins)'],
]

FAULTS['anyorder/tokens/apart.py'] = 'test_apart', [
    ['tokens[:, :-1] == eos', 'tokens[:, 1:] == eos'],
    ['max(N // LENGTH, ', 'min(N // LENGTH, '],
    ['place = position - begin', 'pass'],
    ["law != 'random'", 'True'],
    ['2 * begin + ~given', '2 * begin'],
    ['place >= end', 'place > end'],
    ['argsort(descending=True, stable=True)', 'argsort(stable=True)'],
    ['keep = ~costs_nothing.all(1)', 'keep = costs_nothing.all(1) | True'],
    ['~given, begins', 'given, begins'],
    ['ends_of(begins, flags.size(1))', 'ends_of(begins, 0)'],
    ['or split.has_rows', ''],
    ['split.eos is None', 'False'],
]

# fmt: on


def faults_of(words):
    """[(file, tests, text, what to put there)] of the files whose name holds one of `words`.

    Raises ValueError for faults whose text does not stand in exactly one statement of its file."""
    chosen = []
    stale = []
    for file, (tests, pairs) in FAULTS.items():
        if not any(word in file for word in words):
            continue
        source = read(file)
        said = [text for _, text in statements(source)]
        for text, fault in pairs:
            n_times = sum(statement.count(text) for statement in said)
            if n_times == 1:
                compile(
                    put(source, text, fault), file, 'exec'
                )  # a fault that is no Python tests nothing
            else:
                stale.append(f'{file}: {text!r} stands {n_times} times')
            chosen.append((file, tests, text, fault))
    if stale:
        raise ValueError('the code has changed: write these faults anew\n' + '\n'.join(stale))
    if not chosen:
        raise ValueError(
            f'no file has {" or ".join(words)} in its name; there are {", ".join(FAULTS)}'
        )
    return chosen


@functools.cache
def statements(source):
    """[(node, text)] of all statements, as ast.unparse writes them; of a compound statement its head alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler) and not isinstance(
            node, ast.Try | ast.Match
        ):
            found.append((node, text_of(node)))
    return found


def text_of(node):
    if not hasattr(node, 'body'):
        return ast.unparse(node)
    head = copy.copy(node)
    head.body = [ast.Pass()]
    head.orelse = []
    head.decorator_list = []
    return ast.unparse(head).removesuffix('pass').rstrip()


def put(source, text, fault):
    """The source in which `text`, which stands in one of its statements, has become `fault`."""
    node, said = next((node, said) for node, said in statements(source) if text in said)
    lines = source.encode().splitlines(keepends=True)  # an offset of a node counts bytes
    if hasattr(node, 'body'):
        last = node.body[0].lineno - 1
        kept = b''
        if last < node.lineno:  # the body stands in the line of the head
            last = node.lineno
            kept = lines[last - 1][node.body[0].col_offset :]
    else:
        last = node.end_lineno
        kept = lines[last - 1][node.end_col_offset :]
    before = lines[node.lineno - 1][: node.col_offset]
    if lines[node.lineno - 1][node.col_offset :].startswith(b'elif'):
        said = f'el{said}'
    made = said.replace(text, fault).replace('\n', '\n' + ' ' * node.col_offset)
    return b''.join(
        [*lines[: node.lineno - 1], before, made.encode(), kept or b'\n', *lines[last:]]
    ).decode()


def read(file):
    with open(os.path.join(ROOT, file), encoding='utf-8') as f:
        return f.read()


def copy_tree(names, folder):
    """Copy the files `names` of the project into a folder."""
    for name in names:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, name), path)


def failure(tests, names, seconds, file=None, text='', fault=''):
    """How the tests fail in a copy of the files `names`, in one of which `text` has become `fault`; '' if they pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(names, folder)
        if file:
            with open(os.path.join(folder, file), 'w', encoding='utf-8') as f:
                f.write(put(read(file), text, fault))
        command = [sys.executable, '-m', 'pytest', '-x', '-q', '-n0', '-p', 'no:cacheprovider']
        command += [f'tests/{name}.py' for name in tests.split()]
        try:
            done = subprocess.run(
                command, cwd=folder, timeout=seconds, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return 'the tests hang'
    said = [line for line in done.stdout.splitlines() if line.startswith(('FAILED', 'ERROR'))]
    return '' if done.returncode == 0 else (said or [done.stdout + done.stderr])[0]


def main(config):
    at_least(config, 1, 'jobs', 'seconds')
    faults = faults_of(config.words)
    listed = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    names = [name for name in listed.split('\0') if os.path.isfile(os.path.join(ROOT, name))]
    files = {file: tests for file, tests, *_ in faults}
    # tests that fail in any case would catch every fault
    for tests in dict.fromkeys(files.values()):
        if said := failure(tests, names, config.seconds):
            raise ValueError(f'{tests}.py fails without a fault: {said}')

    def caught(fault):
        file, tests, text, change = fault
        said = failure(tests, names, config.seconds, file, text, change)
        bar.update()
        return bool(said)

    with progress(total=len(faults), desc='faults') as bar, ThreadPoolExecutor(config.jobs) as pool:
        fates = list(pool.map(caught, faults))

    print(f'{"":<26}{"faults":>7}{"caught":>8}')
    for file in files:
        mine = [(fault, fate) for fault, fate in zip(faults, fates) if fault[0] == file]
        print(f'{file:<26}{len(mine):>7}{sum(fate for _, fate in mine) / len(mine):>8.0%}')
        for (_, _, text, change), fate in mine:
            if not fate:
                line = next(node.lineno for node, said in statements(read(file)) if text in said)
                print(f'    survived in line {line}: {text!r} -> {change!r}')
    share = sum(fates) / len(fates)
    print(f'{"all":<26}{len(fates):>7}{share:>8.0%}')
    if share < 0.9:
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        arguments = sys.argv[1:]
        if all(argument.startswith('-') for argument in arguments):
            arguments = [*arguments, '.py']  # a part of all names
        main(configure(globals(), arguments))
