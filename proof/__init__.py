"""Tools that prove the engine and are not part of the wheel: simulation, failpoints, faulty doubles, scenarios."""
