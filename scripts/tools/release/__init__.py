"""Build, check and sign a release.

| module | what it does |
|---|---|
| `state` | checks the repository: version, tag, changelog, no uncommitted changes |
| `builder` | builds the sdist and the wheels; the same commit gives the same bytes |
| `artifacts` | checks the contents and platform tags of these files |
| `attachments` | writes the SBOM, the provenance, the release notes and the checksums |
| `install_check`, `smoke_test` | install the wheel for each Python on this machine, and serve a model with it |
| `signatures` | signs the checksums, and verifies downloaded files |
| `rehearsal` | installs, upgrades and downgrades from a local index, and signs with a temporary key |
| `attestations` | rehearses what a package index attests: signs with a local Sigstore, and verifies |
"""
