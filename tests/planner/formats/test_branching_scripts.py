"""Scripts that choose their arguments in branches, arithmetic and defaults: as bash itself chooses, or refused."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import rows

from cost_models.errors import InputError
from planner.formats.bash import is_decided, read_script
from planner.formats.launches import launch_of, world_size

BASH = shutil.which("bash")
SNIPPETS = (
    "if [ ${S} == '7b' ]; then A=1; elif [ $S = 13b ]; then A=2; else A=3; fi",
    'if [[ "$S" == 13* && $N -ge 8 ]]; then A=1; else A=2; fi',
    'if [[ "$S" == "13*" ]] || ! [[ $N -lt 9 ]]; then A=1; fi',
    "case $S in 7b|8b) A=1;; 13*) A=2; B=$A ;; *) A=9 ;; esac",
    "if false; then case $S in esac; A=7; fi; B=4",
    'case "$S" in\n  (x) A=1\n ;;\n  *b)\n A=2\n B=3;;\nesac',
    "A=$((N * 4 / 3 % 7 - 2)); B=$(( $N + ${N} ))",
    "A=$((N > 4 && N != 9)); B=$((-7 / 2)); ((N > 2)) && C=yes || C=no",
    "if (( N % 8 == 0 )); then A=$((N / 8)); else A=odd; fi",
    "A=${X:-$N}; B=${S:-none}; C=${X-}; D=${S:+said}; E=${X:=late}; F=$X",
    "A=${S^^}; B=${A,,}; C=${#S}; D=${S:0:2}; E=${S:1}",
    "P=/data/sets/run.sh; A=${P##*/}; B=${A%.sh}; C=${P%/*}; D=${P#/}; E=${P%%/s*}",
    "L=(a b c); A=${L[1]}; B=${#L[@]}; C=${L[$((N - 6))]}; L+=(d); D=${L[-1]}; E=${L[@]}",
    "declare -A T=([7b]=32 [13b]=40); A=${T[$S]}; B=${T[7b]}",
    '[ -n "$S" ] && A=1; [ -z $S ] && B=1 || B=2; true && C=3; false || D=4',
    "{ [[ $N -gt 9 ]] || [[ $S == 13b ]]; } && A=1 && B=2 || C=3",
    "if true; then if false; then A=1; else A=2; fi; else A=3; fi; unset S; B=${S:-gone}",
    "A='--x 1'; A+=' --y 2'; if [ $N -eq 8 -a $S != 7b ]; then A=\"$A --z\"; fi",
    'if [ -z "$S" -o $N -le 8 ]; then A="it\'s"; fi # fi',
    "export A=1 B=2; readonly C=$A$B; f() { A=7; }; (B=5); D=$B",
    "A=1; cat <<EOF >/dev/null\nA=2; don't\nEOF\nB=$A; cat <<-'E F' >/dev/null; C=3\n\tC=4; if\n\tE F\nD=$C",
    "A=1; A=2 true $A; B=$A; A=3 B=4 true; C=$A$B; export C A=5; declare -x D=$A E",
    "if ( [ $N = 8 ] ); then A=1; fi; if ! [ $N = 8 ]; then B=1; else B=2; fi",
)
NAMES = ["A", "B", "C", "D", "E", "F", "S", "N"]


def by_bash(text: str) -> dict[str, str]:
    """What names are at the end, by the shell itself."""
    show = "\n".join(f'printf "%s=%s\\0" {name} "${{{name}[*]}}"' for name in NAMES)
    assert BASH is not None
    done = subprocess.run(
        [BASH, "-c", f"{text}\n{show}"], capture_output=True, text=True, env={}, timeout=20, check=False
    )
    return dict(one.split("=", 1) for one in done.stdout.split("\0") if one)


@pytest.mark.skipif(BASH is None, reason="there is no bash to ask")
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_as_bash_itself(snippet: str) -> None:
    text = f"S=13b; N=8\n{snippet}"
    known = read_script(text).environment
    bash = by_bash(text)
    unknown = [name for name in NAMES if not is_decided(known.get(name, ""))]
    assert unknown == (["A"] if "f()" in snippet else [])
    assert {name: known.get(name, "") for name in NAMES if name not in unknown} == {
        name: value for name, value in bash.items() if name not in unknown
    }


WORDS = st.sampled_from(("7b", "13b", "70b", "x y", ""))
TESTS = st.one_of(
    st.builds('[ "$S" = "{}" ]'.format, WORDS),
    st.builds('[[ $S != "{}" ]]'.format, WORDS),
    st.builds("[[ $S == {}* ]]".format, st.sampled_from(("7", "1", "q"))),
    st.builds("[ $N -{} {} ]".format, st.sampled_from(("eq", "lt", "ge")), st.integers(0, 9)),
    st.builds("(( N * {} > {} ))".format, st.integers(-3, 3), st.integers(-9, 9)),
    st.sampled_from(("true", "false", '[ -n "$S" ]', '[ -z "$S" ]')),
)
SUMS = st.recursive(
    st.one_of(st.integers(0, 50).map(str), st.just("N")),
    lambda one: st.builds("({} {} {})".format, one, st.sampled_from(["+", "-", "*", "/", "%"]), one),
    max_leaves=5,
)
SET = st.one_of(
    st.builds("{}={}".format, st.sampled_from("ABC"), st.integers(0, 99)),
    st.builds("{}+={}".format, st.sampled_from("ABC"), st.integers(0, 9)),
    st.builds("{}=$(({}))".format, st.sampled_from("ABC"), SUMS.filter(lambda text: not {*"/%"} & {*text})),
    st.builds("{}=${{{}:-{}}}".format, st.sampled_from("ABC"), st.sampled_from("ABCD"), st.integers(0, 9)),
)
LINES = st.recursive(
    SET,
    lambda one: st.one_of(
        st.builds("{}; {}".format, one, one),
        st.builds("if {}; then {}; else {}; fi".format, TESTS, one, one),
        st.builds("if {}; then {}; elif {}; then {}; fi".format, TESTS, one, TESTS, one),
        st.builds("{} && {{ {}; }}".format, TESTS, one),
        st.builds("{} || {} && {}".format, TESTS, TESTS, SET),
        st.builds('case "$S" in 7b) {} ;; 1*|x*) {} ;; *) {} ;; esac'.format, one, one, one),
    ),
    max_leaves=8,
)


@pytest.mark.skipif(BASH is None, reason="there is no bash to ask")
@given(size=WORDS, count=st.integers(0, 9), lines=LINES)
@settings(max_examples=number(60, 600), deadline=None)
def test_random_branches_as_bash_itself(size: str, count: int, lines: str) -> None:
    text = f'S="{size}"; N={count}\n{lines}'
    known = read_script(text).environment
    assert {name: known.get(name, "") for name in NAMES} == by_bash(text)


@pytest.mark.parametrize("change", ["read -r A", "eval A=4", 'eval "export A=4"', "let A=4", "printf -v A 4"])
def test_a_name_that_a_command_changes_is_not_what_it_was(change: str) -> None:
    assert not is_decided(read_script(f"A=2\n{change}\nB=3").environment["A"])


def test_an_assignment_before_a_command_is_not_in_its_words() -> None:
    (command,) = read_script("TP=2\nTP=4 torchrun train.py --tp $TP").commands
    assert (command.words[-1], command.environment["TP"]) == ("2", "4")


def test_a_launch_in_a_here_document_is_read_and_its_names_are_left_there() -> None:
    text = "TP=2\nsbatch <<EOF\nTP=8\ntorchrun pretrain_gpt.py --num-layers $TP\nEOF\n"
    assert launch_of(text).arguments == ("--num-layers", "8")
    assert read_script(text).environment["TP"] == "2"


SCRIPT = """
SIZE=${SIZE:-small}; NODES=${NNODES:-2}
declare -A HIDDEN=([small]=2048 [large]=4096)
if [ $SIZE = small ]; then
    LAYERS=24 TP=1
elif [[ $SIZE == large ]]; then
    LAYERS=32 TP=4
else
    echo "no such size"; exit 1
fi
ARGS=(--num-layers $LAYERS --hidden-size ${HIDDEN[$SIZE]} --num-attention-heads $((HIDDEN / 128)))
ARGS+=(--global-batch-size $((NODES * 8 * 4)) --tensor-model-parallel-size $TP)
[ -n "$WANDB" ] && ARGS_LOGS="--wandb-project $WANDB"
torchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" --bf16 --data-path $DATA
"""


def test_a_script_chooses_by_what_it_is_started_with() -> None:
    small = launch_of(SCRIPT.replace("HIDDEN / 128", "2048 / 128"))
    assert " ".join(small.arguments).startswith(
        "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
    )
    assert "`SIZE` is not set; its default `small` is used" in small.assumptions
    large = launch_of(SCRIPT, "SIZE=large NNODES=4 --vocab-size 50304")
    assert large.arguments[:4] == ("--num-layers", "32", "--hidden-size", "4096")
    assert "--global-batch-size 128 --tensor-model-parallel-size 4" in " ".join(large.arguments)
    assert large.arguments[-2:] == ("--vocab-size", "50304")
    with pytest.raises(InputError, match="ends with `exit 1` before"):
        launch_of(SCRIPT, "SIZE=huge")
    with pytest.raises(InputError, match="LAYERS: the script sets it to `32`"):
        launch_of(SCRIPT, "SIZE=large LAYERS=40")


def test_what_a_script_asks_for_is_not_set() -> None:
    """A test whether a variable is empty, a check that the program is there, and what both say."""
    text = """
        ARGS=(--num-layers 8)
        if [ -n "${RUN_NAME}" ]; then ARGS+=(--wandb-exp-name $RUN_NAME); fi
        if [ -n "$WANDB_KEY" ]; then ARGS+=(--wandb-project $WANDB_KEY); fi
        if [ ! -f pretrain_gpt.py ]; then echo "there is no pretrain_gpt.py here"; exit 1; fi
        sbatch --nodes=4 --ntasks-per-node=8 <<EOF
        srun python pretrain_gpt.py ${ARGS[@]}
    """
    launch = launch_of(text)
    assert launch.arguments == ("--num-layers", "8")
    assert launch.assumptions == ("`RUN_NAME` is not set",)
    assert world_size(launch, None) == 32
    with pytest.raises(InputError, match=r"paste the files in the place of `source args.sh`"):
        launch_of("source args.sh; exit 0")


def test_what_only_a_shell_knows_stays_unknown() -> None:
    for (choice,) in rows("""
        if [ -f here ]; then A=1; fi
        if [ $1 = 7b ]; then A=1; fi
        case $(hostname) in a*) A=1;; esac
        for A in 1 2; do :; done
        while read A; do :; done < file
        A=$(nproc)
        A=$((NPROC * 2))
        grep -q x file && A=1
        A=1; if [ $RANDOM -gt 3 ]; then A=2; fi
        A=1; ((A++))
        A=1; if [[ $X =~ ^a ]]; then A=2; fi
        A=${!B}
        setup() { A=1; }; A=2; setup() { A=3; }
    """):
        said = launch_of(f"{choice}\npretrain_gpt.py --num-layers $A").arguments
        assert not is_decided(said[1]), choice


def test_odd_scripts_end() -> None:
    for text in [
        "if " * 5000,
        "fi; done; esac; } ) ;; fi",
        "case",
        "case x in",
        "case x in a) case y in b) c) d)",
        "((",
        "[[ a && ( b",
        "if; then; elif; else; fi; ! ! !",
        "A=${A:-${A:-${A:-${A:-${A:-${A:-${A:-${A:-${A:-${A:-1}}}}}}}}}}",
        "A=$((9**99999)); B=$((1<<999999)); C=$((" + "1+" * 5000 + "1))",
        "A=x\n" + "A=${A}${A}\n" * 40,
        "f() { f; }; f",
        "[ ( ]; [[ ]]; [ ]; test; [ ! ]",
        "A=${A[${A[${A[0]}]}]}; A[1]=2; ${A",
    ]:
        with suppress(InputError):
            read_script(text)


def test_other_trainers_commands_say_what_to_import() -> None:
    for text, hint in rows("""
        torchrun -m torchtitan.train --job.config_file l.toml --a 4 | l.toml CLUSTER --gpus N --also "--a 4"
        torchrun -m torchtitan.train --module m --dump $O | m/config_registry.py CLUSTER --gpus N --also "--dump $O"
        O=a.b=1; python /opt/megatron_gpt_pretraining.py -cp=/c --config-name=g $O | /c/g.yaml CLUSTER --also "a.b=1"
        deepspeed --num_gpus 8 train.py --deepspeed_config ds.json | ds.json MODEL CLUSTER --gpus N --sequence S
    """):
        with pytest.raises(InputError, match="whose settings are in a file") as error:
            launch_of(text)
        assert f"import {hint}" in str(error.value.hint)


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    touch = f"touch {mark}"
    read_script(
        f"if {touch}; then A=$({touch}); fi; case `{touch}` in *) A[$({touch})]=1;; esac\n"
        f'B=$(( $({touch}) )); [[ $({touch}) ]] && {touch}; C=${{X:-$({touch})}}; eval "{touch}"; source <({touch})'
    )
    assert not mark.exists()
