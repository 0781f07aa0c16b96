"""
What did a generation look like? Writes a page that replays it (sample.py --html=FILE; FILE#1,12,step shows sample 1 after step 12,
coloured by step).
"""
import json
import math
from itertools import groupby

import numpy as np

from anyorder.files import replace_file


def kendall_tau(steps):
    """How left to right an order was: Kendall's tau-b of position and step of the drawn tokens, in order of position. 1 is left to
    right, -1 right to left; None when all were drawn in one step."""
    steps = np.asarray(steps)
    above = np.sign(steps[None, :] - steps[:, None])[np.triu_indices(len(steps), 1)]   # position rises along a row
    untied = np.count_nonzero(above)
    return float(above.sum() / math.sqrt(untied * len(above))) if untied else None


def token_texts(tokens, tokenizer, there=None):
    """The text of each token. A letter of several tokens stands at its last, if all of them are `there` (by default they are)."""
    texts = [tokenizer.decode([t]) for t in tokens]
    for in_part, run in groupby(range(len(texts)), key=lambda i: '\ufffd' in texts[i] and (there is None or there[i])):
        places, letters = list(run), []
        for i in places * in_part:
            letters.append(tokens[i])
            text = tokenizer.decode(letters)
            texts[i], letters = ('', letters) if text.endswith('\ufffd') and i != places[-1] else (text, [])
    return texts


def write_page(path, samples, tokenizer, title, columns=0):
    """One self-contained page that replays `samples`: dicts of tokens, step (-1: known from the start) and logprob, in natural order, and
    a `name` and which tokens are `wrong` if they like. With `columns` they are laid out as a grid of so many. A letter of several tokens
    stands at its last, whenever the others come."""
    rows = []
    for s in samples:
        drawn = [step for step in s['step'] if step >= 0]
        rows.append({'name': s.get('name', f'sample {len(rows)}'), 'text': token_texts(s['tokens'], tokenizer), 'step': s['step'],
                     'p': [float(f'{math.exp(x):.3g}') for x in s['logprob']], 'tau': kendall_tau(drawn),
                     'nats': -sum(s['logprob']), 'drawn': len(drawn), 'wrong': s.get('wrong', [])})
    page = {'title': title, 'columns': columns, 'samples': rows}
    data = json.dumps(page).replace('<', '\\u003c')   # nothing in it can end the script element
    replace_file(path, PAGE.replace('DATA', data).encode())


PAGE = r'''<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Any-order generation</title>
<style>
  :root { color-scheme: light dark; --hue: 212;
          --ink: #1c1c1e; --paper: #fbfaf7; --soft: #6b6b70; --line: #d8d6cf; --light: 88%; --deep: 62%; --bad: #a80f0f }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #ececea; --paper: #17181b; --soft: #9a9aa0; --line: #36373c; --light: 22%; --deep: 42%; --bad: #ffa3a3 } }
  body { font: 16px/1.6 system-ui, sans-serif; color: var(--ink); background: var(--paper);
         max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
  h1 { font-size: 1.1rem; font-weight: 600 } #facts, #legend { color: var(--soft); font-size: .9rem }
  #bar { display: flex; gap: .8rem; align-items: center; margin: 1rem 0; flex-wrap: wrap } #slider { flex: 1; min-width: 12rem }
  button, select { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line); border-radius: .4rem;
                   padding: .15rem .7rem }
  #text { font: 15px/1.75 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line);
          border-radius: .5rem; padding: 1rem; min-height: 8rem }
  #text.grid { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 2.4rem)); gap: 2px; justify-content: center }
  #text.grid span { text-align: center; padding: .2rem 0; border: 1px solid var(--line) }
  #text span { border-radius: .2rem } .blank { color: var(--soft); opacity: .6 } .known { font-weight: 700 }
  .now { outline: 2px solid hsl(28 90% 52%) }
  .wrong { color: var(--bad); font-weight: 700; text-decoration: line-through }
  #swatches { display: inline-flex; vertical-align: middle; margin: 0 .4rem }
  #swatches i { width: 1.6rem; height: .8rem }
</style></head><body>
<h1 id="title"></h1>
<div id="bar"><select id="which" aria-label="sample"></select><button id="play">play</button>
<input id="slider" type="range" min="0" aria-label="step"><span id="at"></span>
<select id="colour" aria-label="colour by"><option value="p">colour by confidence</option><option value="step">colour by step</option>
</select></div>
<div id="text"></div><p id="legend"></p><p id="facts"></p>
<script id="data" type="application/json">DATA</script>
<script>
const {title, columns, samples} = JSON.parse(document.getElementById('data').textContent)
const get = id => document.getElementById(id), text = get('text'), slider = get('slider'), which = get('which'), colour = get('colour')
let timer = null
get('title').textContent = title
samples.forEach((s, i) => which.add(new Option(s.name, i)))
if (columns) { text.classList.add('grid'); text.style.setProperty('--columns', columns) }
const shade = x => `hsl(var(--hue) 70% calc(var(--deep) + (var(--light) - var(--deep)) * ${(1 - x).toFixed(3)}))`

function choose() {
  const s = samples[which.value], steps = [...new Set(s.step.filter(x => x >= 0))].sort((a, b) => a - b)
  s.rank = s.step.map(x => x < 0 ? 0 : steps.indexOf(x) + 1)   // 0 is the prompt
  s.n = steps.length
  slider.max = s.n
  slider.value = s.n
  text.replaceChildren(...s.text.map((t, i) => {
    const span = document.createElement('span')
    const what = s.rank[i] ? `step ${s.rank[i]}, probability ${s.p[i]}` : 'prompt'
    span.title = `${JSON.stringify(t)}, position ${i}, ${what}`
    return span
  }))
  const tau = s.tau === null ? 'undefined (one step)' : s.tau.toFixed(3)
  get('facts').textContent = `${s.drawn} tokens in ${s.n} steps; ${(s.nats / Math.max(1, s.drawn)).toFixed(3)} nats a token; `
    + `Kendall tau of position and step ${tau} (1 is left to right, -1 right to left)`
  draw()
}

function draw() {
  const s = samples[which.value], at = +slider.value, by = colour.value
  get('at').textContent = `step ${at} of ${s.n}`
  s.text.forEach((t, i) => {
    const span = text.children[i], r = s.rank[i], shown = r <= at
    span.textContent = shown ? t.replaceAll('\n', '↵\n') : '·'
    span.className = !shown ? 'blank' : r === 0 ? 'known' : r === at && at < s.n ? 'now' : ''
    if (shown && s.wrong[i]) span.classList.add('wrong')
    span.style.background = shown && r ? shade(by === 'p' ? s.p[i] : r / s.n) : ''
  })
  const ends = by === 'p' ? ['probability 0', '1'] : ['first step', 'last']
  const swatches = Object.assign(document.createElement('span'), {id: 'swatches'})
  get('legend').replaceChildren(ends[0], swatches, ends[1], ' · bold: prompt · outlined: just revealed'
    + (s.wrong.some(x => x) ? ' · red: wrong' : ''))
  for (let k = 0; k <= 4; k++) swatches.append(Object.assign(document.createElement('i'), {style: 'background:' + shade(k / 4)}))
}

function stop() { clearInterval(timer); timer = null; get('play').textContent = 'play' }
get('play').onclick = () => {
  if (timer) return stop()
  if (+slider.value >= +slider.max) slider.value = 0
  get('play').textContent = 'pause'
  const advance = () => { slider.value = +slider.value + 1; draw(); if (+slider.value >= +slider.max) stop() }
  timer = setInterval(advance, Math.max(30, 6000 / slider.max))
}
slider.oninput = () => { stop(); draw() }
which.onchange = () => { stop(); choose() }
colour.onchange = draw
const [sample, step, by] = location.hash.slice(1).split(',')   // page.html#sample,step,p shows one moment
if (samples[sample]) which.value = sample
if (by) colour.value = by
choose()
if (step) { slider.value = step; draw() }
</script></body></html>
'''
