"""Makes results of what clusters have trained, many cells in one process: the files of each, then DVC's
lock files, once for all."""

from collections import defaultdict
from pathlib import Path

from pipeline.cells.experiment import Experiment
from pipeline.engines import Task
from pipeline.engines.delivery import Order, check, refused
from pipeline.errors import FedReproError
from pipeline.schema import Cell


def record(arrived: list[tuple[Task, Order, Path]], root: Path) -> dict[Task, str]:
    """Check every delivery, write its result and enter it into dvc.lock; returns the error of each stage, one
    line, empty where it is recorded. Nothing is returned while another process holds DVC's lock."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import lock_repo

    from pipeline.cells import training  # with torch: seconds, once

    errors: dict[Task, str] = {}
    by_file = defaultdict(list)
    try:
        with lock_repo(arrived[0][0].stage.repo):
            for task, order, path in arrived:
                try:
                    found = check(path, order, root)
                    experiment = Experiment.of(Cell.parse(order.cell), root)
                    plan = training.plan(experiment, found["precision"], found["executor"])
                    plan.write(plan.result())
                    task.stage.save(run_cache=False)
                    task.stage.commit()
                    by_file[task.stage.dvcfile.path].append(task)
                except LockError:
                    continue  # a stage reads its folder: the next call
                except (FedReproError, DvcException, OSError) as error:
                    errors[task] = " ".join(str(error).split())
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                    why = f"names seeds that are not what training writes ({type(error).__name__})"
                    errors[task] = str(refused(path, order, why))
            for tasks in by_file.values():
                stages = [task.stage for task in tasks]
                stages[0].dvcfile.dump_stages(stages, update_pipeline=False)
                errors |= dict.fromkeys(tasks, "")
    except LockError:
        pass
    return errors
