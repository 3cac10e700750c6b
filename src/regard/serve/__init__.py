"""Models over HTTP: OpenAI's routes and some of ours. The only room that has heard of HTTP.

    client ──► door ──► route ──► line ◄── the thread that owns the model
               key, host, sizes   a text, piece by piece

`app` puts it together, `server` listens, `house` has the models.
"""
