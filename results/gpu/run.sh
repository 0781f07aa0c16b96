#!/bin/bash
# The first hour on a GPU, in 25 minutes: is all right there, how fast, what does a model learn?
#
#     bash results/gpu/run.sh
#     bash results/gpu/run.sh 9 equalities train   # so many minutes, these parts; goes on
#
# Needs torch 2.11 or newer and requirements.txt, but no network: the text is `books` in data/, else
# from Python. A command begins when all of its limit is left of the minutes, and is ended at its
# limit. What is finished is not run again; what failed, was ended or interrupted is. out/gpu has what
# each command said, NAME.txt, and all of it on one page, page.md, with checkpoints and data.
cd "$(dirname "$0")/../.." || exit 1
minutes=${1:-25}
parts=${*:2}
out=out/gpu
device=${DEVICE:-cuda}
end=$(($(date +%s) + 60 * minutes))
failed=
mkdir -p $out || exit 1
python -c "import torch; print('#', torch.cuda.get_device_name(), 'torch', torch.__version__)" >> $out/page.md

run() { # PART_name, seconds at most, and what stands behind `python`
    local name=$1 limit=$2 began=$(date +%s) code
    shift 2
    [[ -z $parts || " $parts " == *" ${name%%_*} "* ]] || return
    [[ -e $out/$name.done ]] && return
    if ((end - began < limit)); then
        echo "left for later: $name, which may take $limit s"
        return
    fi
    echo "python $*"
    timeout "$limit" python "$@" > $out/$name.txt 2>&1
    code=$?   # 124: it took more than its limit
    if ((code)); then failed+=" $name"; else touch $out/$name.done; fi
    {
        printf '\n## %s\n\n```\n$ python %s   (code %s, %s s)\n' "$name" "$*" $code $(($(date +%s) - began))
        sed 's/.*\r//' $out/$name.txt | tail -n 40
        echo '```'
    } >> $out/page.md
}

updates() { # how many updates of so many tokens fit into the seconds, by what PART_rate said
    awk -v seconds="$2" -v tokens="$3" '/^ours/ { for (i = 2; i <= NF; i++) if ($i ~ /%$/) {
        gsub(",", "", $(i - 1)); n = int(seconds * $(i - 1) / tokens); print n ? n : 1 } }' $out/"$1"_rate.txt
}

small='--n_layer=12 --n_head=12 --n_embd=768'
medium='--n_layer=24 --n_head=16 --n_embd=1024'
on=--device=$device

run equalities 420 -m pytest -o addopts= -q tests/test_on_device.py $on

# Which batch size? Is torch.compile worth it, is MFU 50 %?
train="-m anyorder.extras.speed train --plain=False $on"
for n in 8 16 32; do run train_small_$n 150 $train $small --batch_size=$n; done
for n in 8 16; do run train_medium_$n 150 $train $medium --batch_size=$n; done
run train_small_eager 60 $train $small --batch_size=16 --compile=False

# Do CUDA graphs stay?
for n in 1 32; do
    for graphs in False True; do
        run sample_${n}_$graphs 90 -m anyorder.extras.speed sample $small --windows=32 --batch_size=$n --plain= \
            --cuda_graphs=$graphs $on
    done
done

# What do the networks cost, and is the context ensemble faster than the plain way here too?
run grid 240 -m anyorder.extras.speed grid $small --n_steps=64,256 --repeats=1 --out=$out/grid.json $on
run ensemble 90 -m anyorder.extras.speed ensemble $small --n_positions=64 $on

# What does a model of some 30M parameters beside its vocabulary learn in 5 minutes?
text='--n_layer=8 --n_head=8 --n_embd=512 --block_size=256 --batch_size=64 --optimizer=muon'
if [[ -e data/books ]]; then
    data='--dataset=books' vocabulary='--vocab_size=50304 --n_tokens=50257'
else
    data="--dataset=pydocs --data_dir=$out/data" vocabulary='--vocab_size=320 --n_tokens=257'
fi
run text_rate 120 $train $text $vocabulary
if [[ -e $out/text_rate.done ]]; then
    n=$(updates text 300 16384)
    ckpt=--ckpt=$out/text/ckpt.pt
    run text_train 420 train.py config/books.py $data $text --max_iters=$n --eval_interval=$((n / 20 + 1)) \
        / 20 + 1)) --warmup_iters=200 --learning_rate=3e-3 --min_lr=3e-4 --ema_decay=0.995 \
        --out_dir=$out/text $on
    run text_eval 90 eval_ppl.py $ckpt --n_blocks=512 --n_orders=16 --estimates=l2r,any $on
    run text_random 60 sample.py $ckpt --order=random --n_samples=2 $on
    run text_margin 60 sample.py $ckpt --order=margin --n_samples=2 $on
    run text_frontier 240 -m anyorder.extras.speed frontier $ckpt --n_samples=32 --batch_size=32 --n_blocks=32 \
        --n_steps=16,64 --windows=8,32 --thresholds= --block_lengths=32 $on
    run text_curve 60 -m anyorder.extras.pictures $out/text -o $out/text.png --x=time
fi

# Decoder, encoder and mixed network after equal updates of Sudoku: which solves more?
sudoku='--n_layer=6 --n_head=8 --n_embd=256 --block_size=81 --batch_size=256 --optimizer=muon:0.04 --compile=False'
data=--data_dir=$out/data
run sudoku_data 120 -m anyorder.extras.puzzles make sudoku $data --n_train=60000 --n_val=100 --n_test=200
run sudoku_rate 60 $train $sudoku --vocab_size=64 --n_tokens=10
if [[ -e $out/sudoku_rate.done ]]; then
    n=$(updates sudoku 75 20736)
    for network in decoder encoder mixed; do
        folder=$out/sudoku_$network
        run sudoku_$network 150 train.py config/sudoku.py $data $sudoku --network=$network,gate_init=1 --max_iters=$n \
            --eval_interval=$((n / 5 + 1)) --out_dir=$folder $on
        run sudoku_${network}_solved 90 -m anyorder.extras.puzzles solve --ckpt=$folder/ckpt.pt $data \
            --orders=random,margin --n_puzzles=200 $on
    done
fi

if [[ $failed ]]; then
    echo "failed:$failed"
    exit 1
fi
echo "finished, see $out/page.md"
