"""HTTP plumbing: server, middleware, strict JSON, the model pool, and streams from engine threads to the event loop."""
