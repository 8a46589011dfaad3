"""Models in repositories (folders and buckets), served by tritonserver itself or by workers.

From a request to load a model by name, down to its files:

    repository_models.py  loads, unloads and lists models by name; reloads them when tritonserver restarts
    model_control.py      the same, requested by models and by tritonserver's clients
    model_loader.py       loads one model into tritonserver or into workers; LoadQueue loads many
    model_records.py      what is known of each model: its state, its server, why it failed
    repositories.py       where models' folders are, and files that came with a load request
    model_folders.py      reads one model's folder, and decides whether tritonserver or workers serve it
    folder_spec.py        builds a registration from a folder, for workers
    watch.py              notices changed files, and models that tritonserver's clients loaded or unloaded

May import: models and what is below them.
"""
