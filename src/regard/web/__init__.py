"""HTTP plumbing: server, middleware, strict JSON, the pool of models, from engine threads to the event loop."""
