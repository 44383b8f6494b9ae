"""The one place where decisions meet the world: events in, effects out, everything on one event loop."""
