"""How the deployment is reached and watched: service, gateway, monitoring."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_crds.fields import KeyRef, Labels, ObjectName, OneSecondToAnHour
from paceline_crds.group import Group

Port = Annotated[int, Field(ge=1, le=65_535)]
DEFAULT_PORT = 8000


class ServiceType(StrEnum):
    """Type of the Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Service(Group):
    """The Service in front of the pods."""

    port: Port = DEFAULT_PORT
    """Port of the OpenAI endpoint."""
    type: ServiceType | None = None
    """Type of the Service. Default: ClusterIP."""
    api_key_secret_ref: KeyRef | None = None
    """Secret with the API keys, one a line; it is mounted into the pod as a file."""


class EndpointPicker(Group):
    """The endpoint picker's Service of the Gateway API inference extension."""

    name: ObjectName
    """Name of the Service in the same namespace."""
    port: Port
    """Its port."""


class InferencePool(Group):
    """An InferencePool over the pods."""

    endpoint_picker: EndpointPicker
    """Who picks the pod for each request."""


class Gateway(Group):
    """Routing by the Gateway API."""

    inference_pool: InferencePool | None = None
    """An InferencePool over the pods."""


class PodMonitor(Group):
    """A PodMonitor for the Prometheus operator."""

    enabled: bool | None = None
    """Whether to write one. Default: true where the cluster knows the kind."""
    interval: OneSecondToAnHour | None = None
    """Time between scrapes. Default: 15s."""
    labels: Labels | None = None
    """Labels by which a Prometheus selects it."""


class Monitoring(Group):
    """How metrics reach Prometheus, whose own address is a value of the chart."""

    pod_monitor: PodMonitor | None = None
    """A PodMonitor for the Prometheus operator."""
