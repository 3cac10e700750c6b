"""The OpenAI-compatible API: completions, chat completions, and routes for the other tasks.

    client ──► middleware ──► route ──► stream bridge ◄── the thread that owns the model
               key, host, sizes         text, chunk by chunk

`app` assembles it; `web.server` listens, `web.model_pool` holds the models.
"""
