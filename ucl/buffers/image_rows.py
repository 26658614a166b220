"""The image storage of a memory: copies images by index, and writes new images over those that leave.

Nothing here waits for the device. The storage has one row per slot, and a last spare row. The host does not know which
images of a batch are retained, so a batch is written as a whole: what is not retained goes to the spare row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def take(images_NCHW: Tensor, indices: Tensor) -> Tensor:
    """A copy of the images with these indices, channels last."""
    _, channels, height, width = images_NCHW.shape
    taken = _as_rows(images_NCHW)[indices].view(torch.uint8)
    return taken.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def write_new(storage_NCHW: Tensor, batch_BCHW: Tensor, retained_M: Tensor, old_rows_M: Tensor) -> Tensor:
    """Write the retained images of a batch over stored images that are not retained; returns the rows of all retained.

    Args:
        storage_NCHW: the storage; its last row is the spare one.
        batch_BCHW: the images of the batch.
        retained_M: the retained images: the row of a stored image; for image i of the batch, the number of rows plus i.
        old_rows_M: the rows of the slots that will hold them. They include all rows of stored images in `retained_M`.
    """
    n_rows, n_batch = len(storage_NCHW), len(batch_BCHW)
    spare, device = n_rows - 1, storage_NCHW.device
    is_new_M = retained_M >= n_rows
    is_free = torch.ones(n_rows, dtype=torch.bool, device=device)
    is_free[retained_M.clamp_max(spare)] = False
    free_first_M = old_rows_M[(~is_free[old_rows_M]).byte().argsort(stable=True)]
    nth_new_M = (is_new_M.cumsum(0) - 1).clamp_min(0)
    rows_M = torch.where(is_new_M, free_first_M[nth_new_M], retained_M)
    row_of_batch = torch.full((n_batch + 1,), spare, device=device)  # The last entry takes the rows of stored images.
    row_of_batch[torch.where(is_new_M, retained_M - n_rows, n_batch)] = rows_M
    _as_rows(storage_NCHW)[row_of_batch[:-1]] = _as_rows(batch_BCHW)
    return rows_M


def _as_rows(images_NCHW: Tensor) -> Tensor:
    """Images as one row of numbers each, sharing their memory if that is channels last.

    The numbers are words of 8 bytes if possible: indexing copies number by number, so fewer are faster.
    """
    bytes_NR = images_NCHW.permute(0, 2, 3, 1).flatten(1)
    return bytes_NR.view(torch.int64) if bytes_NR.shape[1] % 8 == 0 else bytes_NR
