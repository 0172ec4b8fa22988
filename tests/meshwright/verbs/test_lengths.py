"""Documents of unlike length as people describe them: a file, a distribution, what is said and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

JOB = ("llama3-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--sequence", "2048")
ASKED = (*JOB, "--stack", "fsdp")
LAYOUT = ("--layout", "dp8 mbs1 zero3")


def test_documents_are_packed_or_padded(meshwright, tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("tokens,answer\n" + "512,10\n" * 3 + "1024,20\n")
    words = (*ASKED, *LAYOUT, "--lengths", str(file))
    packed = meshwright.json("estimate", *words)
    padded = meshwright.json("estimate", *words, "--packing", "pad")
    assert packed["question"]["lengths"] == {
        "packing": "pack",
        "lognormal": None,
        "mean_tokens": 640.0,
        "counted_share": pytest.approx(1.0, abs=0.01),
    }
    assert padded["question"]["lengths"]["counted_share"] == pytest.approx(640 / 2048)
    assert packed["estimate"]["tokens_per_second"] > 3 * padded["estimate"]["tokens_per_second"]


def test_blank_lines_of_a_file_say_nothing(meshwright, tmp_path) -> None:
    """First, last, between, of blanks or of empty cells; with columns and without."""
    for text in (
        "{0}512{0}1024{0}",
        "{0}tokens,answer{0}512,10{0}1024,20{0}",
        "{0}prompt,answer{0}500,12{0}1000,24{0}",
    ):
        said = []
        for blank in ("\n", "\n\n", "\n  \t\n", "\n,,\n"):
            (tmp_path / "lengths.csv").write_text(
                text.format(blank).removeprefix("\n" if blank == "\n" else "")
            )
            answer = meshwright(
                "estimate", *ASKED, *LAYOUT, "--lengths", str(tmp_path / "lengths.csv"), "--json"
            )
            assert answer.code == 0, answer.err
            said.append(json.loads(answer.out)["question"]["lengths"]["mean_tokens"])
        assert len(set(said)) == 1


def test_a_plan_file_keeps_them(meshwright, tmp_path) -> None:
    plan = tmp_path / "plan.yaml"
    words = (*ASKED, *LAYOUT, "--lengths", "lognormal(600,1.5)")
    answer = meshwright("estimate", *words, "-o", str(plan))
    assert answer.code == 0
    assert "% of documents are longer than a sequence, and cut to it" in answer.err
    assert "packed into sequences of 2,048" in " ".join(meshwright("explain", str(plan)).out.split())
    written = meshwright("export", str(plan), "--to", "accelerate")
    assert written.code == 0
    assert "its own data makes sequences of documents" in " ".join(written.err.split())
    assert "on documents of unlike length" in meshwright.refusal("run", str(plan), "--dry-run")
    assert meshwright("estimate", *ASKED, *LAYOUT, "--answers", "0.5", "-o", str(plan)).code == 0
    assert "the executor's loss counts every token" in meshwright("run", str(plan), "--dry-run").err


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("512\n4096\n", (), "lengths.csv:2: a document of 4,096 tokens is longer than a sequence of 2,048"),
        ("8\n" * 3000 + "4096\n", (), "lengths.csv:3001: a document of 4,096 tokens is longer than"),
        ("8\n4096\n", (), "hint: --sequence 4096, or cut what is longer"),
        ("tokens,answer\n500,600\n", (), "csv:2: an answer of 600 tokens in a document of 500"),
        ("prompt,answer\n500,60\n1000\n", (), "csv:3: `` is no number of tokens above zero"),
        ("prompt,answer\n500,0\n", (), "lengths.csv holds no answer"),
        ("", ("--answers", "1.5"), "--answers: must be at most 1, not `1.5`"),
        ("tokens\n512\n-3\n", (), "lengths.csv:3: `-3` is no number of tokens above zero"),
        ("tokens\n", (), "holds no length"),
        ("", ("--lengths", "lognormal(600)"), "is no distribution of lengths"),
        ("", ("--lengths", "lognormal(600,x)"), "is no distribution of lengths"),
        ("", ("--lengths", "nowhere.csv"), "cannot read `nowhere.csv`: no such file"),
        ("", ("--lengths", "/dev/zero"), "`/dev/zero` is larger than 100 MB"),
        ("512\n", ("--packing", "pck"), "did you mean `pack`?"),
        ("", ("--packing", "pack"), "there are none"),
    ],
)
def test_what_cannot_be_read_is_refused(
    content: str, words: tuple[str, ...], said: str, meshwright, tmp_path
) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(content)
    named = () if words and not content else ("--lengths", str(file))
    assert said in meshwright.refusal("estimate", *ASKED, *LAYOUT, *named, *words)


def test_a_loss_of_answers_alone(meshwright, tmp_path) -> None:
    """A stack that leaves masked tokens out before the output matrix computes less; the others as much as ever."""
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,answer\n" + "768,256\n" * 2)

    def found(stack: str, *words: str) -> Any:
        asked = (*JOB, "--stack", stack, *LAYOUT, "--state-dtype", "bf16", "--json")
        return json.loads(meshwright("estimate", *asked, *words).out)

    said = found("torchtune", "--lengths", str(file))
    assert said["question"]["answers"] == 0.25
    answers = said["estimate"]
    assert answers["answers_per_second"] == pytest.approx(0.25 * answers["tokens_per_second"])
    every = found("torchtune", "--lengths", str(file), "--answers", "1")["estimate"]
    quarter, whole = (found("torchtune", "--answers", share)["estimate"] for share in ("0.25", "1"))
    head = 3 * 2 * 128_256 * 4096 * 64 * 2048 / 8  # FLOPs of the output matrix on a GPU
    peak = 989.4e12
    for less, more in ((answers, every), (quarter, whole)):
        spared = more["step_seconds"] - less["step_seconds"]
        assert 0.75 * head / peak < spared < 0.75 * head / peak / 0.4
    fsdp = [found("fsdp", *words)["estimate"]["step_seconds"] for words in ((), ("--answers", "0.25"))]
    assert fsdp[0] == fsdp[1]


@pytest.mark.parametrize(("model", "why"), [("bert-large", "no answers"), ("t5-11b", "have no price")])
def test_answers_are_of_decoders(model: str, why: str, meshwright) -> None:
    assert why in meshwright.refusal("estimate", model, *ASKED[1:], *LAYOUT, "--answers", "0.3")
