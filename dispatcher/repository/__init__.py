"""Models in repositories (folders and buckets), served by tritonserver itself or by workers.

The modules, from a request to load a model by name down to its files:

    repository_models.py  loads, unloads and lists models by name; reloads them when tritonserver restarts
    model_control.py      loads and unloads requested by models and by tritonserver's clients
    model_loader.py       loads one model into tritonserver or into workers; LoadQueue loads many
    model_records.py      the record of each model: state, server, and reason of a failure
    repositories.py       locations of the models' folders, and files sent with a load request
    model_folders.py      reads one model's folder, and decides whether tritonserver or workers serve it
    folder_spec.py        builds a registration from a folder, for workers
    watch.py              detects changed files, and models that tritonserver's clients loaded or unloaded

May import: models and what is below them.
"""
