"""Flask: a request enqueues, a worker works.

    flask --app examples/flask_app run            # the web process: enqueues only
    mainspring run examples.flask_app:ms          # the worker process (or: python examples/flask_app.py)

Views are plain functions in any number of threads or forked workers, so they use `.sync`.
"""

from __future__ import annotations

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

from mainspring import Mainspring

ms = Mainspring()  # $MAINSPRING_URL, or sqlite:///mainspring.db


@ms.task
def send_invoice(customer: str, copies: int = 1) -> str:
    return f"{copies} for {customer}"


app = Flask(__name__)


@app.post("/invoices/<customer>")
def create_invoice(customer: str) -> ResponseReturnValue:
    copies = request.args.get("copies", default=1, type=int)
    run = send_invoice.using(unique=customer).sync.enqueue(customer, copies)
    return jsonify(id=run.id, created=run.created), 202


@app.get("/runs/<run_id>")
def read_run(run_id: str) -> ResponseReturnValue:
    run = ms.sync.find_by_id(run_id)
    return jsonify(run.to_dict())


if __name__ == "__main__":
    ms.run()
