"""What a transformer over patches of noisy images has besides its blocks' usual halves."""

from __future__ import annotations

from cost_models.base import PositiveInt, Spec


class Diffusion(Spec):
    """What makes an encoder a diffusion transformer (DiT: Peebles and Xie 2022, arXiv 2212.09748): its tokens are
    patches of a noisy latent image, and a vector made of its time step and class shifts, scales and gates both halves
    of every block (adaLN-Zero, section 3.2). Norms have no parameters; rows of the vocabulary are classes."""

    latent: PositiveInt = 32
    """Numbers of a side of a latent image, each of 8 pixels; the job's sequence is its patches."""
    patch: PositiveInt = 2
    """Numbers of a side of a patch."""
    channels: PositiveInt = 4
    """Channels of a latent image."""
    frequencies: PositiveInt = 256
    """Width of the sines and cosines of a time step, which two matrices make a vector of."""

    @property
    def tokens(self) -> int:
        """Patches of an image."""
        return int((self.latent // self.patch) ** 2)

    @property
    def pixels(self) -> int:
        """Numbers of a patch."""
        return int(self.channels * self.patch**2)

    def entrance_weights(self, hidden_size: int) -> int:
        """Parameters of the matrices that make tokens of patches and a vector of a time step, with their biases."""
        return int((self.pixels + self.frequencies + hidden_size + 3) * hidden_size)

    def entrance_flops(self, hidden_size: int) -> float:
        """Forward and backward FLOPs of those for an image; nothing wants gradients of what enters the first two."""
        first = 2 * (self.tokens * self.pixels + self.frequencies)
        return 2.0 * hidden_size * (first + 3 * hidden_size)
