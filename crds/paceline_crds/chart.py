"""The definition as a template of the Helm chart, so that an upgrade of the chart upgrades it.

Helm never touches files below `crds/` again once they are installed. As a template the definition
is upgraded with the release; the annotation `keep` leaves it, and with it every LLMDeployment, when
the release is uninstalled. A cluster with a newer schema keeps its own: the template is empty then,
and `keep` holds the object.
"""

from paceline_crds import crd
from paceline_crds.llmdeployment import GROUP, PLURAL

_HEAD = """\
{{{{- /* {note} */ -}}}}
{{{{- $live := dict }}}}
{{{{- if .Values.crds.enabled }}}}
{{{{- $live = lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "{name}" }}}}
{{{{- end }}}}
{{{{- $versions := ($live.metadata | default dict).annotations | default dict }}}}
{{{{- $newest := index $versions "{annotation}" | default "0" | atoi }}}}
{{{{- if and .Values.crds.enabled (le $newest {version}) }}}}
"""
_END = "{{- end }}\n"
_KEEP = """\
    helm.sh/resource-policy: keep
    argocd.argoproj.io/sync-options: Prune=false,Delete=false
  labels: {{- include "paceline.labels" . | nindent 4 }}
"""


def definition_template(definition: str, note: str) -> str:
    """The template's text.

    Args:
        definition: YAML of the definition, with the annotation of its schema's version.
        note: how the file is made, for its first line.
    """
    annotation = f"    {crd.SCHEMA_VERSION_ANNOTATION}: '{crd.SCHEMA_VERSION}'\n"
    head, found, body = definition.partition(annotation)
    assert found, "the definition carries the version of its schema"
    text = _escaped(head + annotation) + _KEEP + _escaped(body)
    start = _HEAD.format(
        note=note,
        name=f"{PLURAL}.{GROUP}",
        annotation=crd.SCHEMA_VERSION_ANNOTATION,
        version=crd.SCHEMA_VERSION,
    )
    return start + text + _END


def _escaped(text: str) -> str:
    """The text with what Helm would take for an action written as a literal one."""
    return text.replace("{{", '{{ "{{" }}')
