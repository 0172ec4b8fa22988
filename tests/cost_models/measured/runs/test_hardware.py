"""What tables call a GPU and a network, read as the catalogue's."""

from __future__ import annotations

import pytest

from cost_models.files import catalog
from cost_models.measured.runs.printed import Notes, PrintedRow, cluster_of, meaning, spellings


@pytest.mark.parametrize("gpu", sorted({name for _, name in spellings()["gpus"]}))
def test_every_gpu_that_tables_name_is_in_the_catalogue_with_a_cluster(gpu: str) -> None:
    assert gpu in catalog.names("gpus")
    small = cluster_of(PrintedRow({}), gpu, 1, Notes())
    large = cluster_of(PrintedRow({"gpus_per_node": "8"}), gpu, 144, Notes())
    assert small.gpu.name == large.gpu.name == gpu
    assert (small.num_gpus, large.num_gpus) == (1, 144)


@pytest.mark.parametrize(
    ("words", "gpu"),
    [
        ("A100-SXM-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 40GB PCIe", "a100-pcie-40gb"),
        ("H100 SXM5 80GB", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("GH200 (Hopper)", "gh200"),
        ("RTX A6000 (Ampere)", "rtx-a6000"),
        ("RTX 3090 Ampere", "rtx-3090"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("A10G", "a10g"),
        ("AMD Instinct MI250X (GCD)", "mi250x-gcd"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("GeForce RTX 5090", "rtx-5090"),
        ("RTX A5000", "rtx-a5000"),
        ("A30", "a30"),
        ("AWS p4d.24xlarge (A100)", "a100-sxm-40gb"),
        ("V100-SXM2-16GB", "v100-16gb"),
        ("Cerebras WSE-2", None),
        ("", None),
    ],
)
def test_names_of_gpus(words: str, gpu: str | None) -> None:
    assert meaning("gpus", words.lower()) == gpu


@pytest.mark.parametrize(
    ("gpu", "words", "gigabits", "kind"),
    [
        ("a100-sxm-80gb", "8x200Gb HDR IB per node", 200, "infiniband"),
        ("a100-sxm-80gb", "1600 Gb/s node-node (RoCE)", 200, "roce"),
        ("a100-sxm-80gb", "800 Gb/s per node (4x200Gb HDR IB), NVLink 150 GB/s", 100, "infiniband"),
        ("a100-sxm-80gb", "", 200, "infiniband"),
        ("h100-sxm", "400 Gb/s per GPU", 400, "infiniband"),
        ("h100-sxm", "8x400 Gb/s IB, 1x100GbE management", 400, "infiniband"),
        ("h100-sxm", "25GbE management, 200 Gb/s HDR per GPU", 200, "infiniband"),
        ("a100-sxm-80gb", "PCIe Gen4 x16 32 GB/s, 100 Gb/s IB per GPU", 100, "infiniband"),
        ("h100-sxm", "EFA 3200 Gbps", 400, "ethernet"),
        ("a100-pcie-80gb", "", 100, "infiniband"),
        ("h100-sxm", "InfiniBand NDR 3.2Tb/s", 400, "infiniband"),
        ("h100-sxm", "50 GB/s per GPU IB", 400, "infiniband"),
        ("h100-sxm", "400 GB/s inter-node", 400, "infiniband"),
        ("h100-sxm", "InfiniBand (200 GB/s per node)", 200, "infiniband"),
        ("h100-sxm", "NVLink 900 GB/s + 8x NDR400", 400, "infiniband"),
        ("h100-sxm", "900 GB/s NVLink, HDR100", 100, "infiniband"),
        ("h100-sxm", "1 x 100G", 12.5, "infiniband"),
        ("a100-sxm-80gb", "EFA 400 Gb/s", 50, "roce"),
        ("a100-sxm-80gb", "100GbE IB", 12.5, "infiniband"),
        ("mi250x-gcd", "Slingshot-11 (25 GB/s per GPU)", 200, "ethernet"),
    ],
)
def test_networks(gpu: str, words: str, gigabits: float, kind: str) -> None:
    network = cluster_of(
        PrintedRow({"interconnect": words, "gpus_per_node": "8"}), gpu, 16, Notes()
    ).links.inter_node
    assert network is not None
    assert network.bandwidth * 8 / 1e9 == pytest.approx(gigabits)
    assert network.kind == kind


def test_pcie_takes_the_place_of_nvlink() -> None:
    row = PrintedRow({"interconnect": "PCIe only", "gpus_per_node": "8"})
    assert cluster_of(row, "h100-sxm", 8, Notes()).links.intra_node.bandwidth == 64e9
    assert cluster_of(row, "t4", 8, Notes()).links.intra_node.bandwidth == 8e9


@pytest.mark.parametrize(
    ("gpus", "per_rack", "racks"), [(64, 64, 1), (72, 72, 1), (144, 72, 2), (256, 64, 4), (512, 64, 8)]
)
def test_jobs_of_several_racks_take_sixteen_trays_of_each(gpus: int, per_rack: int, racks: int) -> None:
    """256 GPUs are four racks of 64: groups of 32 or 64 lie inside one."""
    cluster = cluster_of(PrintedRow({"gpus_per_node": "4"}), "gb200", gpus, Notes())
    assert (cluster.gpus_per_node, cluster.nodes, cluster.num_gpus) == (per_rack, racks, gpus)


def test_figures_in_the_cell_are_those_of_the_board() -> None:
    row = PrintedRow({"gpu": "H100-SXM-96GB-HBM2e (500W, 2.4TB/s)"})
    gpu = cluster_of(row, "h100-sxm", 8, notes := Notes()).gpu
    assert gpu.memory == pytest.approx(94.9 * 2**30, rel=0.01)
    assert (gpu.tdp_watts, gpu.memory_bandwidth) == (500, 2.4e12)
    assert "memory, tdp watts, memory bandwidth as the GPU's cell says" in notes


@pytest.mark.parametrize(
    ("words", "gpu"),
    [
        ("H100-SXM-80GB (700W)", "h100-sxm"),
        ("H200-SXM-141GB", "h200"),
        ("MI250X-128GB", "mi250x-gcd"),
        ("L40S 48GB", "l40s"),
    ],
)
def test_labels_of_the_catalogues_own_boards_change_nothing(words: str, gpu: str) -> None:
    assert cluster_of(PrintedRow({"gpu": words}), gpu, 8, Notes()).gpu == catalog.load_gpu(gpu)


def test_efa_is_slower_to_answer_than_infiniband_and_as_wide() -> None:
    links = [
        cluster_of(PrintedRow({"interconnect": words}), "h100-sxm", 64, Notes()).links.farthest
        for words in ("EFA 3200 Gb/s per node", "8x400Gb NDR IB", "RoCE", "")
    ]
    assert [link.bandwidth for link in links] == [50e9] * 4
    assert [link.latency for link in links] == pytest.approx([20e-6, 5e-6, 5e-6, 5e-6])
