"""A row of a table in, checked by pydantic, and a prediction out. Needs pydantic.

$ pytriton-daemon serve tabular.py
$ pytriton-daemon call churn age=41 income=52000 city=Lyon
$ curl 127.0.0.1:8000/churn -d '{"age": 41, "income": 52000}'
"""

from typing import Optional

from pydantic import BaseModel, Field


class Customer(BaseModel):
    age: int = Field(ge=0, le=150)
    income: float = Field(ge=0, description="a year, in euros")
    city: Optional[str] = None


class Churn(BaseModel):
    probability: float
    leaves: bool


def churn(customer: Customer) -> Churn:
    """Predict whether a customer will leave."""
    probability = 1 / (1 + customer.age / 40 + customer.income / 50_000)
    return Churn(probability=probability, leaves=probability > 0.5)
