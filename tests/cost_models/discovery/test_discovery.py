"""Discovery of a machine from what its commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tables import rows

import meshwright as mw
from cost_models.discovery import Discovery, parse_topology
from cost_models.errors import HostError, InputError
from cost_models.files.catalog import load_cluster
from cost_models.files.local import Machine

MACHINES = Path(__file__).parent / "machines"


class RecordedMachine(Machine):
    """Answers as the text has it; a command that the text lacks is not installed."""

    def __init__(self, text: str) -> None:
        self.unsaid: list[str] = []
        self.commands: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.failing: set[str] = set()
        for part in f"\n{text}".split("\n$ ")[0:1] + [f"$ {one}" for one in f"\n{text}".split("\n$ ")[1:]]:
            self._read_part(part)
        lines = self.files.pop("environment", "").splitlines()
        self.environment = dict(line.split("=", 1) for line in lines)

    def _read_part(self, part: str) -> None:
        """One command, with the files and failures behind it."""
        for at, piece in enumerate(part.split("\n@ ")):
            head, _, body = piece.partition("\n")
            if at:
                self.files[head] = body
            elif head.startswith("$ "):
                self.commands[head[2:]] = body
        for line in part.splitlines():
            if line.startswith("! "):
                self.failing.add(line[2:])

    def run(self, *command: str) -> str | None:
        said = self.commands.get(" ".join(command))
        if said is None:
            known = any(one.split()[0] == command[0] for one in self.commands)
            self.unsaid.append(
                f"`{' '.join(command[:2])}` failed" if known else f"`{command[0]}` is not installed"
            )
        return said

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> Sequence[str]:
        inside = (file[len(path) + 1 :] for file in self.files if file.startswith(f"{path}/"))
        return sorted({one.split("/")[0] for one in inside})


def recorded(name: str, *, without: str = "") -> RecordedMachine:
    """A machine of the folder; `without` is a command that it does not have."""
    machine = RecordedMachine((MACHINES / f"{name}.txt").read_text("utf-8"))
    for command in [one for one in machine.commands if without and one.startswith(without)]:
        del machine.commands[command]
    return machine


WHOLE = {
    "dgx-a100": ("a100-sxm-80gb", 8, 4, "nvswitch 300 GB/s", "infiniband 25 GB/s", 8, 2),
    "dgx-h100": ("h100-sxm", 8, 1, "nvswitch 450 GB/s", "infiniband 50 GB/s", 8, 1),
    "hgx-h200": ("h200", 8, 1, "nvswitch 450 GB/s", "roce 50 GB/s", 8, 1),
    "pcie-l40s": ("l40s", 8, 1, "pcie 32 GB/s", None, None, 2),
    "workstation-4090": ("rtx-4090", 2, 1, "pcie 16 GB/s", "ethernet 625 MB/s", 1, 1),
    "dgx-1-v100": ("v100-32gb", 8, 1, "nvlink 150 GB/s", "infiniband 6.25 GB/s", 4, 2),
    "cloud-a100-40gb": ("a100-sxm-40gb", 8, 1, "nvswitch 300 GB/s", None, None, 2),
    "gb200-tray": ("gb200", 4, 1, "nvswitch 900 GB/s", "infiniband 50 GB/s", 4, 1),
}


def words(link: dict[str, str] | None) -> str | None:
    return link and f"{link['kind']} {link['bandwidth']}"


@pytest.mark.parametrize("name", WHOLE)
def test_a_machine_describes_itself(name: str) -> None:
    answer = mw.discover(machine=recorded(name))
    fields, links = answer.draft.fields, answer.draft.fields["links"]
    named = (fields["gpu"], fields["gpus_per_node"], fields["nodes"])
    found = (*named, words(links["intra_node"]), words(links.get("inter_node")))
    assert (*found, fields.get("rails"), fields.get("gpus_per_host_link", 1)) == WHOLE[name]
    assert answer.complete
    assert answer.cluster.num_gpus == fields["gpus_per_node"] * fields["nodes"]
    assert max(map(len, repr(answer).splitlines())) <= 80


@pytest.mark.parametrize(("name", "like"), [("dgx-a100", "dgx-a100-80gb"), ("dgx-h100", "dgx-h100")])
def test_what_is_found_is_what_the_catalogue_has(name: str, like: str) -> None:
    found, known = mw.discover(machine=recorded(name)).cluster, load_cluster(like)
    assert found.gpu == known.gpu
    assert found.links == known.links
    assert (found.rails, found.host_cores) == (known.rails, known.host_cores)
    assert found.gpus_per_host_link == known.gpus_per_host_link


def test_bridges_are_a_level_and_their_order_is_said() -> None:
    answer = mw.discover(machine=recorded("a6000-pairs"))
    levels = {one["name"]: one["bandwidth"] for one in answer.draft.fields["links"]}
    assert levels == {"bridge": "56.25 GB/s", "node": "32 GB/s", "network": "312.5 MB/s"}
    assert answer.cluster.links.intra_node.kind == "pcie"
    assert any("CUDA_VISIBLE_DEVICES=0,2,1,3" in note for note in answer.draft.notes)
    chosen = recorded("a6000-pairs")
    chosen.environment = {"CUDA_VISIBLE_DEVICES": "0,2,1,3"}
    assert not any("CUDA_VISIBLE" in note for note in mw.discover(machine=chosen).draft.notes)


def test_only_the_gpus_that_are_visible_count() -> None:
    machine = recorded("dgx-1-v100")
    machine.environment = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    answer = mw.discover(machine=machine)
    assert answer.draft.fields["gpus_per_node"] == 4
    # four links stay among these
    assert words(answer.draft.fields["links"]["intra_node"]) == "nvlink 100 GB/s"


def test_what_a_job_is_given_counts() -> None:
    answer = mw.discover(machine=recorded("dgx-a100"))
    assert answer.draft.fields["host_memory"] == "1024 GiB"  # SLURM's, of 2 TiB
    assert answer.draft.fields["name"] == "selene"
    assert mw.discover(machine=recorded("dgx-a100"), nodes=16, name="mine").cluster.num_gpus == 128


def test_machines_that_cannot_train_are_refused() -> None:
    reasons = {"no-gpu": "no GPU on this machine", "a100-mig": "the GPUs are split into MIG slices"}
    for name, told in reasons.items():
        with pytest.raises(HostError, match=told):
            Discovery(recorded(name))


def test_a_machine_of_two_kinds_of_gpu_asks_which() -> None:
    machine = recorded("workstation-4090")
    query = next(one for one in machine.commands if "query-gpu" in one)
    machine.commands[query] = machine.commands[query].replace("1, NVIDIA GeForce RTX 4090", "1, NVIDIA T1000")
    with pytest.raises(HostError, match="one kind of GPU, this one 2") as error:
        Discovery(machine)
    assert "CUDA_VISIBLE_DEVICES=0" in error.value.hint


def test_a_link_nobody_knows_stays_open_and_no_plan_is_made() -> None:
    answer = mw.discover(machine=recorded("cloud-a100-40gb"), nodes=4)
    assert not answer.complete
    assert "no adapter says" in answer.draft.open["links.inter_node"]
    assert "--link inter_node=" in repr(answer)
    with pytest.raises(InputError) as error:
        _ = answer.cluster
    assert "links.inter_node.bandwidth: `unknown` is not a bandwidth" in str(error.value)
    link = {"inter_node": "ethernet,12.5Gb/s"}
    said = mw.discover(machine=recorded("cloud-a100-40gb"), nodes=4, links=link)
    assert said.complete
    assert said.cluster.links.inter_node.bandwidth == 12.5e9 / 8


def test_a_gpu_the_catalogue_lacks_is_written_out_with_what_its_datasheet_must_say() -> None:
    machine = recorded("workstation-4090")
    query = next(one for one in machine.commands if "query-gpu" in one)
    machine.commands[query] = machine.commands[query].replace("RTX 4090", "RTX 9090")
    answer = mw.discover(machine=machine)
    gpu = answer.draft.fields["gpu"]
    assert (gpu["name"], gpu["memory"]) == ("geforce-rtx-9090", "24564 MiB")
    assert gpu["memory_bandwidth"] == "unknown"
    assert "not in the catalogue" in answer.draft.open["gpu"]
    with pytest.raises(InputError, match=r"gpu\.peak\.bf16: `unknown` is not a compute rate"):
        _ = answer.cluster


def test_without_the_rate_of_a_link_its_bandwidth_is_open() -> None:
    seen = Discovery(recorded("dgx-h100", without="nvidia-smi nvlink"))
    assert seen.fields["links"]["intra_node"]["bandwidth"] == "unknown"
    assert "what one link carries" in seen.open["links.intra_node"]


def test_what_could_not_be_asked_is_said() -> None:
    def notes(seen: Discovery) -> str:
        return " ".join(seen.notes)

    assert "`lsblk` is not installed" in notes(Discovery(recorded("dgx-h100", without="lsblk")))
    machine = recorded("cloud-a100-40gb")
    machine.files["/etc/nccl/topo.xml"] = '<!DOCTYPE x [<!ENTITY a "b">]><system/>'
    assert "is not plain XML" in notes(Discovery(machine))
    machine.files["/etc/nccl/topo.xml"] = "<system"
    assert "is not XML" in notes(Discovery(machine))
    machine.environment = {"NCCL_TOPO_FILE": "/nowhere"}
    assert "`/nowhere` cannot be read" in notes(Discovery(machine))


def test_rates_of_a_dumped_topology_count_where_the_kernel_has_none() -> None:
    machine = recorded("cloud-a100-40gb")
    net = '<net name="mlx5_0" dev="0" speed="200000" port="1"/>'
    device = f"<pci class='0x020000'><nic>{net}</nic></pci>"
    machine.files["/etc/nccl/topo.xml"] = f"<system><cpu>{device}</cpu></system>"
    seen = Discovery(machine)
    assert seen.fields["links"]["inter_node"]["bandwidth"] == "3.125 GB/s"
    assert any("adapters are of infiniband" in one for one in seen.assumed)


def test_the_matrix_of_new_and_old_drivers_is_read_alike() -> None:
    new, old = (
        parse_topology(recorded(name).run("nvidia-smi", "topo", "-m")) for name in ("dgx-h100", "dgx-1-v100")
    )
    assert new.path("GPU0", "mlx5_0") == "PXB"
    assert new.nvlinks("GPU3", "GPU7") == 18
    assert old.path("GPU5", "mlx5_2") == "PIX"
    assert [old.nvlinks("GPU0", f"GPU{other}") for other in range(1, 8)] == [1, 1, 2, 2, 0, 0, 0]


def test_links_that_cannot_be_read_are_refused() -> None:
    for text, told in rows("""
        inter_node=infiniband | is not KIND,BANDWIDTH
        inter_node=infinband,400Gb/s | did you mean `infiniband`
        inter_node=infiniband,400Gb | is not a bandwidth
        network=infiniband,400Gb/s | says no place
        inter_node=infiniband,400Gb/s,soon | is not a duration
    """):
        with pytest.raises(InputError, match=told):
            mw.discover(machine=recorded("dgx-h100"), links=dict([text.split("=")]))
