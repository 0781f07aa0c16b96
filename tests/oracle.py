"""What the tests compare with: a slow network, a slow writer, how far counts may be from a law.

They are written from the definitions."""

import math
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from conftest import numbers, options_of_lines
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from anyorder.extras.rules.klass import Klass
from anyorder.extras.rules.pc_sampler import PcSampler
from anyorder.generation.drawing import token_noise
from anyorder.generation.options import choice_in
from anyorder.generation.schedules import binomial_schedule, unmask_schedule
from anyorder.names import is_own
from anyorder.seeds import keys_of

VARIANTS = options_of_lines("""
target_position=adaln
target_position=input
target_position=layer_shared
target_position=layer
rotary=True
target_position=input gpt2_blocks=True bias=False
target_position=layer gpt2_blocks=True rotary=True
""")


TWO_STREAM = options_of_lines("""
target_position=two_stream
target_position=two_stream rotary=True
target_position=two_stream gpt2_blocks=True rotary=True
""")


# networks whose cache knows nothing of targets
FINAL = options_of_lines("""
attention=mixed
attention=mixed target_position=layer rotary=True
""")
FINAL += TWO_STREAM


ENCODER = dict(attention='bidirectional')


# networks by what a slot sees, one of each kind
NETWORKS = {'decoder': {}, 'mixed': FINAL[0], 'encoder': ENCODER, 'two streams': TWO_STREAM[0]}


class Definition:
    """A network for one row, written from the definition of the slot."""

    def __init__(self, model):
        self.w = model.state_dict()
        self.config = model.config
        self.kind = model.config.target_position

    def logits(self, tokens, order, n_known, d):
        """Logits (V,) for visit d of a row: those of the last slot."""
        reads, stands, targets = self.slots(order, n_known, d)
        x = torch.stack([self.vector(p, tokens) for p in reads])
        x = x + self.w['transformer.wpe.weight'][stands]
        if self.kind == 'input':
            x = x + self.w['transformer.wtpe.weight'][targets]
        for i in range(self.config.n_layer):
            x = self.block(x, f'transformer.h.{i}.', stands, targets, n_known)
        final = 'transformer.'
        shift = scale = 0
        if self.kind == 'adaln':
            final = 'transformer.final_layer.'
            shift, scale = self.adaln(final + 'adaLN_final.1', targets, 2)
        x = self.norm(x, final + 'ln_f') * (1 + scale) + shift
        return self.linear(x, 'lm_head')[-1]

    def slots(self, order, n_known, d):
        """What the slots read, where they stand (0 is the place of [None]) and what they predict.

        A decoder runs the slots below min(d, n_known) with their true targets, then the slot of d.
        Two streams run the content slots 0 to min(d, n_known), then the query, where targets turn
        queries. The others run every slot where it stands, the slot of d last."""
        before = order[: min(d, n_known)]
        if self.kind == 'two_stream':
            stands = [0, *[p + 1 for p in before], order[d] + 1]
            return [None, *before, 'query'], stands, [p - 1 for p in stands]
        if self.config.attention == 'causal':
            return [None, *before], [0, *[p + 1 for p in before]], [*before, order[d]]
        targets = [*[p for p in order if p != order[d]], order[d]]
        known = order[:n_known]
        reads = [p if p in known else None for p in targets]
        return reads, [p + 1 for p in targets], targets

    def vector(self, read, tokens):
        if read is None:
            return self.w['transformer.wnonee.weight'][0]
        if read == 'query':
            return self.w['transformer.wquery.weight'][0]
        return self.w['transformer.wte.weight'][tokens[read]]

    def block(self, x, h, stands, targets, n_known):
        if self.kind in ('layer', 'layer_shared'):
            place = h if self.kind == 'layer' else 'transformer.'
            x = x + self.w[place + 'wtpe.weight'][targets]
        parts = 0, 0, 1, 0, 0, 1
        if self.kind == 'adaln':
            parts = self.adaln(h + 'adaLN.1', targets, 6)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        y = self.norm(x, h + 'ln_1') * (1 + scale_a) + shift_a
        x = x + gate_a * self.attention(y, h + 'attn.', stands, targets, n_known)
        y = self.norm(x, h + 'ln_2') * (1 + scale_m) + shift_m
        y = self.linear(y, h + 'mlp.c_fc')
        y = gelu(y, approximate='tanh' if self.config.gelu_tanh else 'none')
        return x + gate_m * self.linear(y, h + 'mlp.c_proj')

    def adaln(self, name, targets, n_parts):
        e = self.w['transformer.wtpe.weight'][targets]
        return self.linear(silu(e), name).chunk(n_parts, -1)

    def attention(self, x, h, stands, targets, n_known):
        """A loop over heads, plainly causal or full; some networks have a mask between."""
        C = self.config.n_embd
        D = C // self.config.n_head
        q, k, v = self.linear(x, h + 'c_attn').split(C, -1)
        heads = []
        for q_own, k_own, v_own in zip(q.split(D, -1), k.split(D, -1), v.split(D, -1)):
            q_own = self.turned(self.norm(q_own, h + 'q_norm'), [p + 1 for p in targets])
            k_own = self.turned(self.norm(k_own, h + 'k_norm'), stands)
            score = q_own @ k_own.T / D**0.5
            self.hide(score, n_known)
            heads.append(score.softmax(-1) @ v_own)
        return self.linear(torch.cat(heads, -1), h + 'c_proj')

    def hide(self, score, n_known):
        """Set the scores (slots, slots) of what a slot does not see to -inf."""
        # in the mixed network a known slot sees no slot behind it
        n_causal = {'causal': len(score), 'bidirectional': 0, 'mixed': n_known}
        for query in range(n_causal[self.config.attention]):
            score[query, query + 1 :] = -math.inf
        if self.kind == 'two_stream':
            score[:, -1] = -math.inf  # nothing sees a query, not even itself

    def norm(self, x, name):
        weight = self.w.get(f'{name}.weight')
        if weight is None:
            return x
        if not self.config.gpt2_blocks:
            return rms_norm(x, weight.shape, weight, 1e-5)
        return layer_norm(x, weight.shape, weight, self.w.get(f'{name}.bias'))

    def linear(self, x, name):
        return x @ self.w[name + '.weight'].T + self.w.get(name + '.bias', 0)

    def turned(self, x, places):
        """Rotary positions, as complex numbers."""
        if not self.config.rotary:
            return x
        half = x.size(-1) // 2
        frequency = 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.tensor(places, dtype=torch.float64)[:, None] * frequency
        z = torch.complex(x[:, :half], x[:, half:])
        z = z * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], -1)


def defined(model, tokens, order, n_known, d):
    """Logits (V,) for visit d of one row of tensors, by the definition."""
    return Definition(model).logits(tokens.tolist(), order.tolist(), n_known, d)


def zero(logits):
    """A score of one's own, which a test names by this file: the probability of token 0."""
    return logits.softmax(-1)[:, 0]


# of the law p of the blank at a position, its laws at the steps of its block before, and the slow
# writer that asks


def klass(p, position, before, writer):
    """Kim et al. 2025, arXiv 2511.05664: above 1 if it is sure and stable, by two comparisons."""
    kl = [float((new * (new / old).log()).nansum()) for old, new in pairwise([*before, p][-3:])]
    is_stable = len(kl) == 2 and max(kl) < Often.kl_limit
    return p.max() + (is_stable and p.max() > writer.threshold)


def pc_sampler(p, position, before, writer):
    """Huang et al. 2025, arXiv 2508.13021."""
    share = (writer.model.counts + 1) / (writer.model.counts + 1).sum()
    nats = -float(p.max()) * math.log(share[p.argmax()])
    return math.exp(-Early.decay * position) * min(Early.most, nats)


SLOW_SCORES = {
    'given': lambda *_: 0,  # of equals the first in the order
    'top_prob': lambda p, *_: p.max(),
    'margin': lambda p, *_: -p.topk(2).values.diff(),
    'entropy': lambda p, *_: (p * p.log()).nansum(),
    'zero': lambda p, *_: p[0],
    'often': klass,
    'early': pc_sampler,
}
SLOW_SCORES |= {'factor': SLOW_SCORES['top_prob'], 'eb': SLOW_SCORES['entropy']}


# rules of extras with numbers that tell on small networks


@dataclass(frozen=True)
class Often(Klass):
    kl_limit: float = 0.5


@dataclass(frozen=True)
class Early(PcSampler):
    decay: float = 0.1
    most: float = 1.0


# of scores, the largest first, and the number of a rule: how many blanks are sure


def factor(ranked, f):
    """Wu et al. 2025, arXiv 2505.22618."""
    return max((n for n, p in enumerate(ranked, 1) if p >= 1 - f / (n + 1)), default=0)


def entropy_bounded(ranked, gamma):
    """Ben-Hamu et al. 2025, arXiv 2505.24857."""
    return max(n for n in range(1, len(ranked) + 1) if -sum(ranked[: n - 1]) <= gamma)


def reached(ranked, threshold):
    return sum(score >= threshold for score in ranked)


SLOW_RULES = {
    'factor': factor,
    'eb': entropy_bounded,
    'often': lambda ranked, _: reached(ranked, 1),
}


# the options of `cut`, and what they are by themselves
CUTS = {'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0}


def cut(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Logits (V,) by the temperature, -inf for what is cut."""
    logits = logits / temperature
    ranked = logits.argsort(descending=True)[: top_k or None]
    p = logits[ranked].softmax(0)
    is_left = (p.cumsum(0) - p < top_p) & (p >= min_p * p[0])
    kept = ranked[is_left] if top_p < 1 or min_p else ranked
    left = torch.full_like(logits, -math.inf)
    left[kept] = logits[kept]
    return left


class ByDefinition:
    """One row that is written, or scored, from its known tokens alone, without a cache or a batch.

    `how` are options of generate. By position (N,) are text, step, logprob, and drawn_logprob: of
    the law by which tokens are drawn. `visits` are as they came, then padding."""

    def __init__(self, model, idx, order, known, n_visits, seed, forced=False, allowed=None, **how):
        self.model = model
        self.seed = seed
        self.allowed = allowed
        usual = {'n_steps': 9, 'schedule': 'linear', 'unmask': 'fixed', 'policy': 'given'}
        usual |= CUTS | {'revise': 0, 'cfg_scale': 0, 'presence_penalty': 0}
        undefined = {*how} - {*usual}
        assert not undefined, f'tests/oracle.py: ByDefinition does not know {undefined}'
        self.how = usual | how
        self.policy, self.numbers = choice_in(self.how['policy'])
        self.threshold = self.numbers.get('threshold')
        self.is_lossless = self.how['unmask'].startswith('lossless')
        self.prompt = order[:known].tolist()
        self.visits = [*self.prompt]
        self.padding = order[n_visits:].tolist()
        self.truth = idx if forced else None
        stays = self.prompt + self.padding
        self.text = torch.zeros_like(idx)
        self.text[stays] = idx[stays]
        self.step = torch.full_like(idx, -1)
        self.logprob = torch.zeros(len(idx), dtype=torch.float64)
        self.drawn_logprob = self.logprob.clone()
        self.n_steps = 0
        blanks = order[known:n_visits].tolist()
        self.write(blanks, self.how['n_steps'], self.numbers.get('block_length'))
        for n_round in range(self.how['revise']):
            before = self.text.clone()
            self.revise(n_round)
            if torch.equal(self.text, before):
                break

    def write(self, blanks, n_steps, block_length, *names):
        u = numbers(self.seed, 'tokens', *names, n=len(self.text))
        for block, ends in self.blocks(blanks, n_steps, block_length, *names):
            laws = []
            for end in ends:
                rest = [p for p in blanks if p not in self.visits]
                left = [p for p in block if p in rest]
                if not rest or (not left and self.threshold is not None):
                    break
                logits = self.logits(self.visits, rest)
                n_new = end - len(block) + len(left)
                laws.append({p: logits[p].softmax(-1) for p in left})
                for p in self.chosen(left, laws, n_new):
                    self.reveal(p, logits[p], u[p])
                self.n_steps += 1

    def blocks(self, blanks, n_steps, block_length, *names):
        """[(block, ends)]: the blanks of each block, and how many of them are revealed after each
        step."""
        n = len(blanks)
        length = block_length or max(n, 1)
        schedule = self.how['schedule']
        u = numbers(self.seed, 'unmask', *names, n=n)
        for start in range(0, n, length):
            block = blanks[start : start + length]
            end = start + len(block)
            # its steps: all up to its end less all up to its start
            n_here = max(1, n_steps * end // n - n_steps * start // n)
            if self.threshold is not None:
                ends = block
            elif isinstance(schedule, list):
                ends = schedule
            elif self.how['unmask'] == 'binomial':
                ends = binomial_schedule(u[start:end], n_here, schedule)
            else:
                ends = unmask_schedule(len(block), n_here, schedule)
            yield block, ends

    def logits(self, visits, blanks):
        """{blank: logits (V,)} given the visits, of which some may be a prompt."""
        logits = self.predicted(visits, blanks)
        scale = self.how['cfg_scale']
        if scale:
            unknown = [*blanks, *self.prompt]
            without = self.predicted(visits[len(self.prompt) :], unknown)[: len(blanks)]
            mixed = (1 + scale) * logits - scale * without
            logits = mixed.where(logits > -math.inf, -math.inf)
        logits[:, self.text[visits].unique()] -= self.how['presence_penalty']
        if self.allowed is not None:
            logits[:, : self.allowed.size(1)].masked_fill_(~self.allowed[blanks], -math.inf)
        return dict(zip(blanks, logits))

    def predicted(self, visits, blanks):
        order = torch.tensor([[*visits, *blanks, *self.padding]])
        sizes = len(visits), len(blanks)
        return self.model.predict(self.text[None], order, *sizes, n_visits=sum(sizes))[0]

    def chosen(self, left, laws, n_new):
        """The blanks left in a block that a step reveals, by their laws at its steps so far."""
        policy = 'zero' if is_own(self.policy) else self.policy or 'given'
        score = {}
        for p in left:
            *before, law = [some[p] for some in laws]
            score[p] = float(SLOW_SCORES[policy](law, p, before, self))
        sure = []
        if self.threshold is not None:
            ranked = sorted(left, key=score.get, reverse=True)
            rule = SLOW_RULES.get(policy, reached)
            sure = ranked[: rule([score[p] for p in ranked], self.threshold)]
            n_new = max(1, len(sure))
        u = numbers(self.seed, 'noise', self.n_steps, n=len(self.text))
        gumbel = -(-u.log()).log()
        noise = self.numbers.get('noise', 0)
        rank = {p: (p in sure, score[p] + noise * float(gumbel[p])) for p in left}
        return sorted(left, key=rank.get, reverse=True)[:n_new]

    def reveal(self, p, logits, u):
        is_greedy = self.how['temperature'] == 0
        law = logits if is_greedy else cut(logits, **{name: self.how[name] for name in CUTS})
        if self.truth is not None:
            token = self.truth[p]
        elif is_greedy:
            token = law.argmax()
        elif self.is_lossless:
            noise = token_noise(keys_of([self.seed]), torch.tensor([p]), len(law))
            token = (law + noise[0]).argmax()
        else:
            token = (law.softmax(-1).cumsum(-1) <= u).sum()  # the first above u
        self.text[p] = token
        self.step[p] = self.n_steps
        self.logprob[p] = logits.log_softmax(-1)[token]
        self.drawn_logprob[p] = law.log_softmax(-1)[token]
        self.visits.append(p)

    def revise(self, n_round):
        """Write the eighth of the tokens again that fits the tokens of other groups least."""
        written = [p for p in range(len(self.text)) if self.step[p] >= 0]
        number = numbers(self.seed, 'groups', n=len(self.text))
        ranked = sorted(written, key=lambda p: number[p])
        group = {p: rank * 8 // len(written) for rank, p in enumerate(ranked)}
        beaten = {}  # by how many nats
        for p in written:
            same = [q for q in written if group[q] == group[p]]
            logits = self.logits([q for q in self.visits if q not in same], same)[p]
            beaten[p] = float(logits.max() - logits[self.text[p]])
        worst = sorted(written, key=beaten.get, reverse=True)[: -(-len(written) // 8)]
        again = [p for p in self.visits if p in worst and beaten[p] > 0]
        self.visits = [p for p in self.visits if p not in again]
        self.write(again, -(-self.how['n_steps'] // 8), None, 'round', n_round)


# all sequences of three tokens, each 0, 1 or 2
EVERY = torch.tensor([*product(range(3), repeat=3)])


def counts_of(drawn):
    """How often each of EVERY is among `drawn` (n, 3)."""
    return (drawn @ torch.tensor([9, 3, 1])).bincount(minlength=27)


def chi2_of(counts, law):
    expected = counts.sum() * law
    return ((counts - expected) ** 2 / expected).sum()


def limit(n_free):
    """A chi2 of so many degrees of freedom is above it once in a million: 5 standard deviations."""
    return n_free + 5 * (2 * n_free) ** 0.5
