"""Lines as other trainers print them, with figures of our own: one writer for each format of `data/logs/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cost_models.measured.logs import Work

WORK = Work(tokens=64 * 1024, sequences=64, gpus=8)
_STAMP = "2026-01-02 03:04:05"


def megatron(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f" [{_STAMP}] iteration {step:8d}/   50000 | consumed samples: {step * work.sequences:12d} |"
        f" elapsed time per iteration (ms): {1e3 * one:.1f} | throughput per GPU (TFLOP/s/GPU): 1.0 |"
        f" learning rate: 1.000000E-04 | global batch size: {work.sequences:5d} | lm loss: 6.5E+00 |"
        " loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 |"
        for step, one in enumerate(seconds, start=first)
    ]


def nemo(seconds: Sequence[float], work: Work = WORK, first: int = 0) -> list[str]:
    return [
        f"Training epoch 0, iteration {step}/49 | lr: 1.5e-05 | global_batch_size: {work.sequences} |"
        f" global_step: {step} |"
        f" reduced_train_loss: 6.5 | train_step_timing in s: {one:.4f} | consumed_samples: {step * work.sequences}"
        for step, one in enumerate(seconds, start=first)
    ]


def nemo_bar(seconds: Sequence[float], work: Work = WORK, first: int = 0) -> list[str]:
    bars = [
        f"Epoch 0: :   2%|2         | {step}/500 [01:02<50:00, v_num=, reduced_train_loss=6.5, global_step={step}.0,"
        f" consumed_samples={step * work.sequences}.0, train_step_timing in s={one:.4f}]"
        for step, one in enumerate(seconds, start=first)
    ]
    return ["\r".join(bars)]


def torchtitan(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f"[rank0]:[titan] {_STAMP},000 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  6.5000  "
        "\x1b[38;2;180;60;0m"
        f"grad_norm:  1.2500  \x1b[36mmemory: 20.25GiB(25.32%)  \x1b[34mtps: {round(work.tokens / work.gpus / one):,}  "
        "\x1b[36mtflops: 1.00  \x1b[35mmfu: 1.00%\x1b[39m"
        for step, one in enumerate(seconds, start=first)
    ]


def torchtune(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f"Step {step} | loss:6.5 lr:2e-05 tokens_per_second_per_gpu:{work.tokens / work.gpus / one}"
        " peak_memory_active:20.0 peak_memory_alloc:20.25 peak_memory_reserved:24.5 grad_norm:1.25 "
        for step, one in enumerate(seconds, start=first)
    ]


def nanotron(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f"[default0]:01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {step} / 500 |"
        " consumed_tokens: 1.31M |"
        f" elapsed_time_per_iteration_ms: {_human(1e3 * one)} | tokens_per_sec: 1K | tokens_per_sec_per_gpu: 1 |"
        f" global_batch_size: {_human(work.sequences)} | lm_loss: 6.5 | lr: 0.0003 | model_tflops_per_gpu: 1 |"
        " hardware_tflops_per_gpu: 1 | grad_norm: 1.25"
        for step, one in enumerate(seconds, start=first)
    ]


def _human(value: float) -> str:
    """Three digits, and K from a thousand on."""
    return f"{value / 1e3:.3g}K" if value >= 1e3 else f"{value:.3g}"


def deepspeed(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f"[{_STAMP},000] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step},"
        f" RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={work.sequences / one},"
        " MemAllocated=5.1GB, MaxMemAllocated=20.25GB"
        for step, one in enumerate(seconds, start=first)
    ]


def deepspeed_pipeline(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    return [
        f"steps: {step} loss: 6.5000 iter time (s): {one:0.3f} samples/sec: {work.sequences / one:0.3f}"
        for step, one in enumerate(seconds, start=first)
    ]


def hugging_face(seconds: Sequence[float], work: Work = WORK, first: int = 1) -> list[str]:
    bars = [
        f"{step / 5:3.0f}%|          | {step}/500 [00:52<1:25:00, "
        + (f"{one:5.2f}s/it]" if one >= 1 else f"{1 / one:5.2f}it/s]")
        for step, one in enumerate(seconds, start=first)
    ]
    return ["\r".join(bars), "{'loss': 6.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.01}"]


VARIANTS = {
    "megatron-seconds": (
        "[default7]: iteration       {step}/   500 | consumed samples:          640 | consumed tokens:       655360 |"
        " elapsed time per iteration (s): 1.25 | global batch size:    64 | lm loss: 6.5E+00 | grad norm: 1.250 |"
        " samples per second: 51.200 | TFLOPs: 1.00 |"
    ),
    "megatron-with-mean": (
        " [2026-01-02 03:04:05] iteration        {step}/     500 | consumed samples:          640 |"
        " elapsed time per iteration (ms): 1250.0/1301.5 | global batch size:    64 | lm loss: 6.5E+00 |"
    ),
    "megatron-plain-loss": (
        "=>  [x] iteration  {step}/  500 | consumed samples: 640 | elapsed time per iteration (ms): 1250.0 |"
        " global batch size: 64 | loss: 6.5E+00 | grad norm: 1.250 |"
    ),
    "gpt-neox": (
        "[2026-01-02 03:04:05,006] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step},"
        " RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=2.0, MemAllocated=5.1GB, MaxMemAllocated=20.25GB\n"
        " samples/sec: 51.2 | iteration       {step}/     500 | elapsed time per iteration (ms): 1250.0 |"
        " learning rate: 1.0E-06 | approx flops per GPU: 1.0TFLOPS | lm_loss: 6.5E+00 |"
    ),
    "torchtitan-2024": (
        "[rank0]:2026-01-02 03:04:05,006 - root - INFO - step: {step}  loss:  6.5000  memory: 20.25GiB(25.32%)"
        "  wps: 6,554  mfu: 1.00%"
    ),
    "nanotron-2025": (
        "01/02 03:04:05 [INFO|DP=0|TP=0|node-1]: iteration: {step} / 500 | consumed_tokens: 1.31M |"
        " time_per_iteration_ms: 1.25K | tokens_per_sec: 52.4K | global_batch_size: 65.5K | grad_norm: 1.25 |"
        " lm_loss: 6.5 | lr: 0.0003 | eta: 1 day, 0:00:01"
    ),
    "deepspeed-by-place": (
        "[2026-01-02 03:04:05,006] [INFO] [timer.py:207:stop] 0/{step}, RunningAvgSamplesPerSec=1.0,"
        " CurrSamplesPerSec=51.2, MemAllocated=5.1GB, MaxMemAllocated=20.25GB"
    ),
    "deepspeed-mean": "[INFO 2026-01-02 03:04:05] 0/{step}, SamplesPerSec=51.2, MaxMemAllocated=20.25GB",
    "lightning": "Epoch 0:   1%|          | {step}/500 [01:02<1:25:00, 1.25s/it, loss=6.5, global_step=9.0]",
    "torchtune-bar": "1|{step}|Loss: 6.5:   1%|          | {step}/500 [01:02<1:25:00, 1.25s/it]",
    "swift": "Train:   1%|          | {step}/500 [01:02<1:25:00,  1.25s/it]",
    "bar-without-bar": "  1% {step}/500 [01:02<1:25:00,  1.25s/it]",
}
"""Lines of a step of 1.25 s as releases and trainers near those of `data/logs/` print them, found in public logs."""

WRITERS: dict[str, Callable[..., list[str]]] = {
    one.__name__: one
    for one in (
        megatron,
        nemo,
        nemo_bar,
        torchtitan,
        torchtune,
        nanotron,
        deepspeed,
        deepspeed_pipeline,
        hugging_face,
    )
}
