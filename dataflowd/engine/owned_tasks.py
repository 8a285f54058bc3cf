"""A task group for tasks that outlive the attempt that starts them: runners, and what the engine does between attempts."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup


@asynccontextmanager
async def owned_tasks(stop: Callable[[], Awaitable[None]]) -> AsyncIterator[TaskGroup]:
    """Opens a task group around a block. However the block ends, `stop` is awaited, and then the tasks are cancelled.

    `stop` runs to its end also when the block was cancelled. An error of the block is raised as it is: a caller need not
    look for it in an ExceptionGroup.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001 - raised again outside the group
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await stop()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
