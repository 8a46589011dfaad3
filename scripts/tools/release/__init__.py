"""Releases: what a version needs before it is published, its files, and the list of what would go out.

| module | what it does |
|---|---|
| `state` | looks at the repository: version, tag, changelog, nothing uncommitted |
| `building` | builds the sdist and the wheels; the same commit gives the same bytes |
| `artifacts` | checks the files: what is in them, the platform tag |
| `trying`, `serving` | installs the wheel for each Python here and serves a model with it |
| `papers` | what goes out beside the files: SBOM (`inventory`), origin (`provenance`), changes (`notes`), sums |
| `signing` | signs the sums, and checks what was downloaded |
| `rehearsal` | installs, upgrades and downgrades from a local index; signs with a key that nobody keeps |
| `images` | plays the steps of a Dockerfile where no engine is |
| `dependencies` | measures what each dependency costs (docs/reference/dependencies.md) |
"""
