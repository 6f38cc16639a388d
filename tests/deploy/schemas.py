"""What Kubernetes and the operator accept: their own schemas, which here allow no word that they lack."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES_VERSIONS = ("1.31", "1.34")


def assert_valid(manifest: Mapping[str, Any], version: str) -> None:
    """Fail unless this version of Kubernetes knows everything in the manifest."""
    _validate(json.dumps(manifest, sort_keys=True), version)


@functools.cache
def _validate(text: str, version: str) -> None:
    # Its schemas take a third of a second each time, and most manifests come again.
    validator = pytest.importorskip("kubernetes_validate", reason="the extra `test` has it")
    validator.validate(json.loads(text), version, strict=True)


def assert_custom_resource_valid(manifest: Mapping[str, Any]) -> None:
    """Fail unless the operator's definition knows everything in the resource."""
    jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` has it")
    definition = _definition(manifest["kind"])
    of_every_resource = {key: {} for key in ("apiVersion", "kind", "metadata")}
    closed = _closed(definition | {"properties": of_every_resource | definition["properties"]})
    # Without a check of the schema itself, which takes seconds.
    jsonschema.Draft202012Validator(closed).validate(manifest)


def operators_values() -> dict[str, Any]:
    """The values of the operator's chart, as they are by default."""
    return yaml.safe_load((_operators_chart() / "values.yaml").read_text())


def _operators_chart() -> Path:
    """Its folder, found without an import, which would take all that the operator works with."""
    spec = find_spec("dask_kubernetes")
    if spec is None or spec.origin is None:
        pytest.skip("the operator's chart is in the package dask-kubernetes, which is not installed")
    return Path(spec.origin).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"


def _definition(kind: str) -> dict[str, Any]:
    """The schema of a kind."""
    folder = _operators_chart()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of 10,000 lines
    definition = yaml.load((folder / "crds" / f"{kind.lower()}.yaml").read_text(), loader)
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def _closed(schema: Any) -> Any:
    """The schema without room for unknown fields, which a cluster would drop without a word."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
