"""What can be predicted: a file a task, binary.py (clicks) and rating.py, for data, training, serving.

Knows no model, no file and no loop; torch is imported when a loss or a prediction is first computed.
"""

from mixdim.tasks.binary import BINARY
from mixdim.tasks.metrics import RANKING
from mixdim.tasks.rating import RATING
from mixdim.tasks.task import Task

__all__ = ["BINARY", "RANKING", "RATING", "TASKS", "Task", "task_of"]

TASKS = {task.name: task for task in (BINARY, RATING)}


def task_of(name: str) -> Task:
    """Return the task that a data set names.

    >>> task_of("ranking")
    Traceback (most recent call last):
    ValueError: task must be one of binary, rating, got 'ranking'
    """
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
