"""Public code of the methods, run beside ours: one module per repository. Each imports the user's checkout; no
code of others is in this folder."""
