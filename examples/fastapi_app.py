"""FastAPI: web app and worker in one process.

    uvicorn examples.fastapi_app:app

`lifespan` starts the engine with the app and drains it when the app stops. Several uvicorn workers may do this on
one store: every fire still has exactly one run.
"""

from __future__ import annotations

from fastapi import FastAPI

from mainspring import Mainspring, Run

ms = Mainspring()  # $MAINSPRING_URL, or sqlite:///mainspring.db


@ms.task
async def send_invoice(customer: str, copies: int = 1) -> str:
    return f"{copies} for {customer}"


@ms.cron("0 9 * * Mon-Fri", tz="Europe/Berlin")
async def morning_report() -> None:
    print("good morning")


app = FastAPI(lifespan=ms.lifespan())


@app.post("/invoices/{customer}", status_code=202)
async def create_invoice(customer: str, copies: int = 1) -> dict[str, str]:
    run = await send_invoice.enqueue(customer, copies)
    return {"id": run.id}


@app.get("/runs/{run_id}")
async def read_run(run_id: str) -> Run:
    return await ms.find_by_id(run_id)
