#!/usr/bin/env bash
# The findings of the paper at a size of minutes: train what one needs, evaluate it, print its table, draw its figure.
#
#   bash config/findings/run.sh orders      1, 2: any order, left to right, and one fixed order (block-wise, random)
#   bash config/findings/run.sh l2r_data    3: without and with 10 % left-to-right sequences
#   bash config/findings/run.sh positions   4: four ways to tell the target position, and rotary; Muon and AdamW
#   bash config/findings/run.sh gates       4: AdaLN gates that start at 0, as the paper's, or at 1; Muon and AdamW
#   bash config/findings/run.sh ema         4: no average of the weights, 0.99, 0.999
#   bash config/findings/run.sh ensemble    5: the context-order ensemble between decoder and encoder
#   bash config/findings/run.sh generation  6, 7: time of generation by the number of steps, decoder and encoder
#
# SEEDS="1 2" trains these seeds, JOBS=2 so many runs at a time, each on one core. OUT=out/findings is where they go.
# What is finished there is not made again, what was interrupted starts anew. Make one finding at a time in a folder,
# since findings share runs. Further arguments go to every train.py, those of generation to bench.py:
# OUT=out/longer bash config/findings/run.sh orders --max_iters=12000
set -euo pipefail
cd "$(dirname "$0")/../.."
finding=${1:-} SEEDS=${SEEDS:-1 2} JOBS=${JOBS:-1} OUT=${OUT:-out/findings}
[ $# -eq 0 ] || shift
more=("$@") jobs=()
[ "$JOBS" = 1 ] || export OMP_NUM_THREADS=1

want() {   # want NAME COMMAND: a job that runs it into NAME.txt, whose first line is the command
    local log command
    log=$(printf '%q' "$OUT/$1") command=$(printf ' %q' "${@:2}")
    if [ ! -e "$OUT/$1.txt" ]; then
        jobs+=("exec 3>&1 >$log.part 2>&1; echo$command; echo$command >&3
                if$command; then mv $log.part $log.txt; else tail -n 3 $log.part >&3; exit 255; fi")
    elif [ "$(head -n 1 "$OUT/$1.txt")" != "$(eval "echo$command")" ]; then
        echo "error: $OUT/$1 was made by other options, $(head -n 1 "$OUT/$1.txt"): choose another OUT" >&2
        exit 1
    fi
}
train() {   # train NAME OPTIONS: every seed of it
    for seed in $SEEDS; do
        want "$1_seed$seed" python train.py config/findings/base.py "${@:2}" ${more[@]+"${more[@]}"} --seed=$seed \
            "--out_dir=$OUT/$1_seed$seed"
    done
}
train_fixed() { for seed in $SEEDS; do SEEDS=$seed train "$1" --l2r_ratio=0 "--order=$1" --order_seed=$seed; done; }
measure() {   # measure NAME OPTIONS: eval_ppl.py of every seed of it
    for seed in $SEEDS; do
        want "$1_seed$seed.json" python eval_ppl.py "--ckpt=$OUT/$1_seed$seed/ckpt.pt" --n_blocks=512 "${@:2}" \
            "--out=$OUT/$1_seed$seed.json"
    done
}
all() {   # run the jobs, JOBS at a time
    [ ${#jobs[@]} -gt 0 ] || return 0
    mkdir -p "$OUT"
    [ -e data/pydocs/meta.json ] || python data/prepare.py pydocs
    printf '%s\0' "${jobs[@]}" | xargs -0 -P "$JOBS" -n 1 bash -c
    jobs=()
}
draw() {   # draw PICTURE SUFFIX OPTION LABELS NAMES: plot.py of every seed of them
    local paths=()
    for name in "${@:5}"; do for seed in $SEEDS; do paths+=("$OUT/${name}_seed$seed$2"); done; done
    python plot.py -o "$OUT/$1.png" ${3:+"$3"} "--labels=$4" "${paths[@]}"
}

adamw=config/findings/adamw.py encoder=(--causal=False --l2r_ratio=0)
case $finding in
orders)
    train any --l2r_ratio=0; train l2r --l2r_ratio=0 --order=l2r; train_fixed block; train_fixed fixed; all
    draw orders '' --y=val_own,val_l2r 'left to right,blocks of 4,one permutation,any order' l2r block fixed any ;;
l2r_data)
    train any --l2r_ratio=0; train base; all
    draw l2r_data '' --y=val_any,val_l2r 'none left to right,10 % left to right' any base ;;
positions)
    train base; train adamw $adamw
    for position in input layer_shared layer; do
        train $position --target_position=$position; train adamw_$position $adamw --target_position=$position
    done
    train rotary --rotary=True; train adamw_rotary $adamw --rotary=True
    train rotary_alone --rotary=True --learned_positions=False; all
    told='AdaLN,added at the input,the same in every layer,another in every layer,AdaLN and rotary'
    draw positions '' --y=val_any,val_l2r "$told,AdaLN and rotary alone" \
        base input layer_shared layer rotary rotary_alone
    draw positions_adamw '' --y=val_any,val_l2r "$told" \
        adamw adamw_input adamw_layer_shared adamw_layer adamw_rotary ;;
gates)
    train base; train gates0 --gate_init=0; train adamw $adamw; train adamw_gates0 $adamw --gate_init=0; all
    draw gates '' --y=val_any,val_l2r \
        'Muon and gates from 1,Muon and gates from 0,AdamW and gates from 1,AdamW and gates from 0' \
        base gates0 adamw adamw_gates0 ;;
ema)
    train base; train ema_none --ema_decay=0; train ema_0.999 --ema_decay=0.999; all
    draw ema '' --y=val_any,val_l2r 'no average,decay 0.99,decay 0.999' ema_none base ema_0.999 ;;
ensemble)
    train base; train encoder "${encoder[@]}"
    train rotary --rotary=True; train encoder_rotary "${encoder[@]}" --rotary=True; all
    measure base --estimates=ensemble --n_contexts=64; measure rotary --estimates=ensemble --n_contexts=64
    measure encoder --estimates=any --n_orders=64; measure encoder_rotary --estimates=any --n_orders=64; all
    draw ensemble .json '' 'decoder,encoder,decoder with rotary,encoder with rotary' \
        base encoder rotary encoder_rotary ;;
generation)
    want generation python bench.py grid "--out=$OUT/generation.json" ${more[@]+"${more[@]}"}; all
    tail -n +2 "$OUT/generation.txt"
    python plot.py -o "$OUT/generation.png" --labels='decoder with its cache,encoder' "$OUT/generation.json" ;;
'' | -h | --help)
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' ;;
*)  echo "error: there is no finding $finding; they are orders, l2r_data, positions, gates, ema, ensemble and" \
        "generation" >&2
    exit 1 ;;
esac
