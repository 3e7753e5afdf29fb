"""Command line of the simulation: `python -m proof.simulation 1234` replays a world, `--worlds` runs many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mainspring.testing.history.report import format_event
from proof.simulation import Outcome, run_world


def run_worlds(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Run the worlds of these seeds in `jobs` processes, and yield their outcomes in the order of the seeds."""
    if jobs <= 1:
        yield from map(run_world, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=500) as pool:
        yield from pool.imap(run_world, seeds, chunksize=5)


@click.command()
@click.argument("seed", type=int, default=1)
@click.option("--worlds", type=int, default=1, help="How many worlds to run: those of SEED and the seeds after it.")
@click.option("--jobs", type=int, default=os.cpu_count() or 1, help="How many processes run worlds at once.")
@click.option("--log", is_flag=True, help="Print the whole event log of the world.")
@click.option("--store", help="postgresql://…: small worlds on a real server, in its schema mainspring_simulation.")
def main(seed: int, worlds: int, jobs: int, log: bool, store: str | None) -> None:
    """Run the world of SEED and print its report, or run many worlds and print each that fails, with its seed."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    live: Callable[..., Outcome] = run_world
    if store is not None:
        from proof.simulated_postgres import world_runner_on

        live = world_runner_on(store)
    if worlds <= 1:
        outcome = live(seed, keep_log=log)
        for event in outcome.log:
            console.print(format_event(event))
        console.print(str(outcome))
        console.print(f"digest {outcome.digest}, {outcome.seconds:.0f} virtual seconds, {outcome.steps} steps")
        raise SystemExit(0 if outcome.ok else 1)
    wrong: list[int] = []
    fires = crashes = stale = 0
    columns = (
        TextColumn("worlds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[wrong]} wrong"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("worlds", total=worlds, wrong=0)
        seeds = range(seed, seed + worlds)
        for outcome in run_worlds(seeds, jobs) if store is None else map(live, seeds):
            fires += outcome.report.fires
            crashes += outcome.crashes
            stale += outcome.stale
            if not outcome.ok:
                wrong.append(outcome.seed)
                progress.console.print(str(outcome))
            progress.update(bar, advance=1, wrong=len(wrong))
    console.print(
        f"{worlds} worlds, {fires} fires, {crashes} crashes, {stale} stale results refused, {len(wrong)} wrong"
    )
    if wrong:
        console.print(f"wrong seeds: {wrong}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
