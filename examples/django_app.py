"""Django in one file: a view enqueues, a worker works.

    python examples/django_app.py runserver       # the web process: enqueues only
    mainspring run examples.django_app:ms         # the worker process

In a project of your own, `ms` and its tasks live in a module such as `shop/jobs.py` that views import.
"""

from __future__ import annotations

import sys

import django  # type: ignore[import-untyped]  # Django ships no types
from django.conf import settings  # type: ignore[import-untyped]
from django.core.management import execute_from_command_line  # type: ignore[import-untyped]
from django.http import HttpRequest, JsonResponse  # type: ignore[import-untyped]
from django.urls import path  # type: ignore[import-untyped]

from mainspring import Mainspring

if not settings.configured:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="only for this example")  # noqa: S106
    django.setup()

ms = Mainspring()  # $MAINSPRING_URL, or sqlite:///mainspring.db


@ms.task
def send_invoice(customer: str, copies: int = 1) -> str:
    return f"{copies} for {customer}"


def create_invoice(request: HttpRequest, customer: str) -> JsonResponse:
    copies = int(request.GET.get("copies", "1"))
    run = send_invoice.sync.enqueue(customer, copies)
    return JsonResponse({"id": run.id}, status=202)


async def create_invoice_async(request: HttpRequest, customer: str) -> JsonResponse:
    run = await send_invoice.enqueue(customer)  # an async view awaits; `.sync` would raise here
    return JsonResponse({"id": run.id}, status=202)


urlpatterns = [
    path("invoices/<str:customer>", create_invoice),
    path("async/invoices/<str:customer>", create_invoice_async),
]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
