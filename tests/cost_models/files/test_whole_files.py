"""Whole files: the catalog, local entries, the schema, and keys that nothing reads."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import KINDS, json_schema
from cost_models.files.whole import AGE_SECONDS, sweep, temporary_folder, whole_file, write_whole
from cost_models.operators.parameters import parameters as on_rank
from cost_models.operators.parameters import total_parameters


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "result.csv"
    path.write_text("old\n")
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_new_takes_the_place_of_the_old(old: Path) -> None:
    write_whole(old, "new, with an é\n")
    assert old.read_bytes() == "new, with an é\n".encode()
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, OSError])
def test_the_old_stays_until_the_new_is_whole(old: Path, end: type[BaseException]) -> None:
    def write_half() -> None:
        with whole_file(old) as stream:
            stream.write(b"ne")
            stream.flush()
            assert old.read_text() == "old\n"
            raise end("half-way")

    with pytest.raises(end, match="half-way"):
        write_half()
    assert old.read_text() == "old\n"
    assert list(old.parent.iterdir()) == [old]


def test_an_error_names_the_file_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "result.csv"
    with pytest.raises(FileNotFoundError) as told:
        write_whole(path, "new\n")
    assert (told.value.filename, told.value.errno) == (str(path), errno.ENOENT)


def test_who_may_read_it_is_as_for_any_other_file(old: Path) -> None:
    beside = old.with_name("new.csv")
    before = os.umask(0o027)
    try:
        write_whole(beside, "new\n")
    finally:
        os.umask(before)
    assert mode(beside) == 0o640
    old.chmod(0o604)
    write_whole(old, "new\n")
    assert mode(old) == 0o604


def test_a_link_stays_one(old: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.csv"
    link.symlink_to(old)
    write_whole(link, "new\n")
    assert link.is_symlink()
    assert old.read_text() == "new\n"
    assert list(link.parent.iterdir()) == [link]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=write_whole, args=(pipe, "new\n"))
    writer.start()
    assert pipe.read_text() == "new\n"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system has no such name")
@pytest.mark.parametrize("mode", ["ab", "wb"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_what_is_printed_to_a_file_stays_and_is_gone_on_with(old: Path, mode: str, name: str) -> None:
    """As by `>> result.csv` and `> result.csv`."""
    program = "from cost_models.files.whole import *; print('a', flush=True)"
    program += f"; write_whole(Path({name!r}), 'b\\n'); print('c')"
    before = old.stat().st_ino
    with old.open(mode) as stream:
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert old.read_text() == ("old\n" if mode == "ab" else "") + "a\nb\nc\n"
    assert old.stat().st_ino == before


pytest.importorskip("fcntl")

KILLED = """
import os, signal, sys
from pathlib import Path
from cost_models.files.whole import temporary_folder
from cost_models.files.whole import whole_file

place = Path(sys.argv[1])
with temporary_folder(".tokens.partial-", place) as folder, whole_file(place / "plan.yaml") as stream:
    (folder / "tokens.bin").write_bytes(b"half")
    stream.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def grow_old(*paths: Path) -> None:
    """As if nothing had been written there, nor below, for longer than leftovers stay."""
    long_ago = time.time() - AGE_SECONDS - 1
    for path in paths:
        for below in path.rglob("*"):
            os.utime(below, (long_ago, long_ago))
        os.utime(path, (long_ago, long_ago))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """An hour later."""
    write_whole(tmp_path / "plan.yaml", "old\n")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(names(tmp_path)) == 3
    write_whole(tmp_path / "plan.yaml", "new\n")
    with temporary_folder(".tokens.partial-", tmp_path):
        assert len(names(tmp_path)) == 4
    grow_old(*tmp_path.iterdir())
    write_whole(tmp_path / "plan.yaml", "new\n")
    with temporary_folder(".tokens.partial-", tmp_path) as folder:
        assert names(tmp_path) == {folder.name, "plan.yaml"}
    assert names(tmp_path) == {"plan.yaml"}


def test_two_who_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    with whole_file(path) as slow:
        slow.write(b"slow\n")
        slow.flush()
        grow_old(*tmp_path.iterdir())
        write_whole(path, "quick\n")
        assert path.read_text() == "quick\n"
    assert path.read_text() == "slow\n"
    assert names(tmp_path) == {"plan.yaml"}


def test_a_folder_somebody_works_in_stays_however_old(tmp_path: Path) -> None:
    with temporary_folder("run-", tmp_path) as mine:
        grow_old(mine)
        with temporary_folder("run-", tmp_path):
            assert mine.exists()


def test_without_a_lock_a_file_that_somebody_writes_keeps_its_folder(tmp_path: Path) -> None:
    """As torchrun does to its own, every few seconds."""
    folder = tmp_path / "run-00000000"
    (folder / "logs").mkdir(parents=True)
    grow_old(folder)
    (folder / "logs" / "rendezvous").touch()
    sweep(tmp_path, re.compile("run-.*"))
    assert (folder / "logs" / "rendezvous").exists()
    grow_old(folder)
    sweep(tmp_path, re.compile("run-.*"))
    assert names(tmp_path) == set()


def test_only_what_has_such_a_name_goes(tmp_path: Path) -> None:
    for name in ("left-1", "other-2"):
        (tmp_path / name).write_text("")
    (tmp_path / "left-3").symlink_to(tmp_path / "other-2")
    (tmp_path / "left-4").mkdir()
    grow_old(*tmp_path.iterdir())
    sweep(tmp_path, re.compile("left-."))
    assert names(tmp_path) == {"left-3", "other-2"}


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".plan.yaml.01234567.partial"
    left.write_text("perhaps somebody's")
    grow_old(left)
    monkeypatch.setattr("cost_models.files.whole.fcntl", None)
    write_whole(tmp_path / "plan.yaml", "new\n")
    assert left.exists()
    assert (tmp_path / "plan.yaml").read_text() == "new\n"


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_loads_and_says_where_its_shape_was_read(name: str) -> None:
    model = catalog.load_model(name)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_every_gpu_is_a_datasheet_in_full(name: str) -> None:
    gpu = catalog.load_gpu(name)
    assert gpu.name == name
    assert gpu.source
    assert gpu.sm_count > 1
    assert gpu.l2_cache
    assert gpu.tdp_watts
    assert gpu.host_bandwidth
    assert gpu.host_bandwidth < gpu.memory_bandwidth
    assert gpu.vector_rate == gpu.peak["fp32"]
    # twice at least: boards for players accumulate at half rate
    assert gpu.peak["fp16"] >= 1.9 * gpu.peak["fp32"]
    if "fp8" in gpu.peak:  # dense for dense, fp8 is twice bf16 on every GPU that has it
        assert gpu.peak["fp8"] == pytest.approx(2 * gpu.peak["bf16"], rel=1e-3)


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_every_cluster_loads_as_one_node_with_its_gpu_written_out(name: str) -> None:
    cluster = catalog.load_cluster(name)
    assert cluster.name == name
    assert cluster.nodes == 1
    assert cluster.source
    assert cluster.links.intra_node.bandwidth > 0
    if network := cluster.links.inter_node:
        assert network.bandwidth < cluster.links.intra_node.bandwidth
        assert network.latency > cluster.links.intra_node.latency
    restored = type(cluster).model_validate_json(cluster.model_dump_json())
    assert restored == cluster


def test_every_stack_and_profile_loads_under_its_file_name() -> None:
    for name in catalog.names("stacks"):
        assert catalog.load_stack(name).name == name
    for name in catalog.names("profiles"):
        profile = catalog.load_profile(name)
        assert (profile.name, sum(one.runs for one in profile.timed)) == (name, profile.validated_runs)


# parameter counts of the released checkpoints, as their safetensors headers state them
COUNTS = """
    gpt2-small 124439808 gpt2-medium 354823168 gpt2-large 774030080 gpt2-xl 1557611200 llama2-7b
    6738415616 llama2-13b 13015864320 llama2-70b 68976648192 llama3-8b 8030261248 llama3-70b 70553706496
    llama3.1-405b 405853388800 llama3.2-1b 1235814400 llama3.2-3b 3212749824 mistral-7b 7241732096
    gpt-neox-20b 20554567680 bloom-176b 176247271424 qwen2-0.5b 494032768 qwen2-1.5b 1543714304 qwen2-7b
    7615616512 qwen2-72b 72706203648 qwen3-0.6b 596049920 qwen3-8b 8190735360 qwen3-32b 32762123264
    gemma2-2b 2614341888 gemma2-9b 9241705984 gemma2-27b 27227128320 gemma3-270m 268098176 gemma3-1b
    999885952 olmo2-1b 1484916736 olmo2-7b 7298617344 olmo2-13b 13716198400 olmo2-32b 32234279936
"""
EXACT_CATALOG = dict(zip(COUNTS.split()[::2], map(int, COUNTS.split()[1::2]), strict=True))
# less 416 866 032 of what sees, and h x 1152 + 1152 that lead from it
EXACT_CATALOG["gemma3-4b"] = 4_300_079_472 - 416_866_032 - 2561 * 1152
EXACT_CATALOG["gemma3-12b"] = 12_187_325_040 - 416_866_032 - 3841 * 1152
EXACT_CATALOG["gemma3-27b"] = 27_432_406_640 - 416_866_032 - 5377 * 1152


# parameters as the safetensors headers state them (DeepSeek: less the block that predicts a second token and the
# router's bias) and billions active for each token as reports print them, within a tolerance. As `transformers` builds
# them from Llama 4 on: Llama 4 for text alone, GLM-4.5 without what predicts a second token, and none with a router's
# bias; active as printed, gpt-oss and GLM-4.5 without their embedding, which is added here
MIXTURES = """
    mixtral-8x7b 46702792704 12.9 0.05  mixtral-8x22b 140630071296 39.1 0.1
    qwen3-30b-a3b 30532122624 3.3 0.06  qwen3-235b-a22b 235093634560 22 0.3
    deepseek-v2-lite 15706484224 2.7 0.3  deepseek-v2 235741434880 21 0.5
    deepseek-v3 671026404352 37 0.6  llama4-scout 107769861120 17 0.2
    llama4-maverick 400711848960 17 0.2  gpt-oss-20b 20914757184 4.189 0.005
    gpt-oss-120b 116829156672 5.709 0.005  glm-4.5 352797814784 32.776 0.9
    glm-4.5-air 106852245504 12.621 0.9  kimi-k2 1026408209408 32.6 0.3
    qwen3-next-80b 79674391296 3.9 0.1  nemotron3-nano 31577937344 3.6 0.05
    jamba-52b 51570323328 12 0.2  deepseek-v3.2 671877929216 37.9 0.6
"""


@pytest.mark.parametrize(
    "words", [*zip(*[iter(MIXTURES.split())] * 4, strict=True)], ids=lambda words: words[0]
)
def test_mixtures_have_the_published_parameters(words: tuple[str, ...]) -> None:
    model = catalog.load_model(words[0])
    total, active, tolerance = int(words[1]), float(words[2]), float(words[3])
    assert total_parameters(model) == total
    experts = model.num_layers * on_rank(model, np.array([1])).experts[0]
    passed_by = (1 - model.experts_per_token / model.num_experts) * experts
    assert (total - passed_by) / 1e9 == pytest.approx(active, abs=tolerance)


@pytest.mark.parametrize(("name", "published"), EXACT_CATALOG.items())
def test_parameters_match_the_released_checkpoint(name: str, published: int) -> None:
    assert total_parameters(catalog.load_model(name)) == published


# billions, as the papers print them: LLaMA Table 2, SC21 Table 1, Nemotron-4 reports
ROUNDED = {
    0.05: """
        llama-7b 6.7 llama-13b 13.0 llama-30b 32.5 megatron-1.7b 1.7 megatron-3.6b 3.6 megatron-7.5b 7.5
        megatron-18b 18.4 megatron-39b 39.1 megatron-76b 76.1 megatron-145b 145.6 megatron-310b 310.1
        megatron-530b 529.6 megatron-1t 1008.0 gpt3-175b 174.6 nemotron4-15b 15.6
    """,
    0.1: """
        llama-65b 65.2 nemotron4-340b 341.0
    """,
    1e-4: """
        mpt-30b 29.9752 mpt-70b 64.8624
    """,
}
"""Tolerance → names and billions of parameters."""


@pytest.mark.parametrize("tolerance", ROUNDED)
def test_parameters_match_the_paper(tolerance: float) -> None:
    words = ROUNDED[tolerance].split()
    for name, billions in zip(words[::2], words[1::2], strict=True):
        count = total_parameters(catalog.load_model(name)) / 1e9
        assert count == pytest.approx(float(billions), abs=tolerance), name


def test_stacks_and_profiles_may_be_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("kind: stack\nname: mine\nattention: flash2\n")
    assert catalog.load_stack(str(file)).name == "mine"
    file.write_text("kind: stack\nname: other\nattention: fast\n")
    with pytest.raises(InputError, match="is a `stack`; a `profile` is needed"):
        catalog.load_profile(str(file))


def test_known_gpus_make_a_gpu_machine_with_the_links_of_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: ("NVIDIA H100 80GB HBM3",) * 4)
    machine = catalog.local_cluster()
    assert machine.name == "local"
    assert machine.gpu == catalog.load_gpu("h100-sxm")
    assert machine.num_gpus == 4
    assert machine.links.intra_node == catalog.load_cluster("dgx-h100").links.intra_node
    assert catalog.local_cluster(2).num_gpus == 2


def test_a_gpu_without_a_catalogue_node_is_reached_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: ("NVIDIA H100 NVL",))
    machine = catalog.local_cluster()
    assert machine.links.intra_node.kind == "pcie"
    assert machine.links.intra_node.bandwidth == catalog.load_gpu("h100-nvl").host_bandwidth


@pytest.mark.parametrize("reported", [(), ("Some New GPU",), ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")])
def test_anything_else_is_the_cpu(monkeypatch: pytest.MonkeyPatch, reported: tuple[str, ...]) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: reported)
    assert catalog.local_cluster(2).gpu.kind == "cpu"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_schema_that_knows_its_fields(kind: str) -> None:
    assert set(json_schema(kind)["properties"]) == set(KINDS[kind].model_fields)
