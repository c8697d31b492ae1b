"""The engine in a pod of a real node: probes, a Service before it, the OpenAI SDK as client."""

import json

from cluster.client import Document
from cluster.namespace import Image, Namespace, pod, service
from cluster.wait import until

LABELS = {"app": "engine"}
FLAGS = ["--served-model-name=demo", "--host=0.0.0.0", "--max-model-len=512", "--max-num-seqs=4"]
ASK = """
import json, openai
client = openai.OpenAI(base_url="http://engine/v1", api_key="none", max_retries=0, timeout=90)
question = [{"role": "user", "content": "What is the capital of France?"}]
chat = dict(model="demo", messages=question, max_tokens=16, temperature=0)
whole = client.chat.completions.create(**chat)
parts = client.chat.completions.create(**chat, stream=True)
streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
print(json.dumps({
    "text": whole.choices[0].message.content,
    "streamed": streamed,
    "tokens": whole.usage.completion_tokens,
    "models": [model.id for model in client.models.list()],
}))
"""


def engine(image: Image) -> Document:
    def probe(path: str, failures: int) -> Document:
        get = {"path": path, "port": 8000}
        return {
            "httpGet": get,
            "periodSeconds": 2,
            "failureThreshold": failures,
            "timeoutSeconds": 5,
        }

    return pod(
        "engine",
        image,
        ["python", "-m", "paceline", "serve", image.model, *FLAGS],
        labels=LABELS,
        resources={"requests": {"cpu": "1", "memory": "1Gi"}},
        startupProbe=probe("/health/ready", 90),
        readinessProbe=probe("/health/ready", 2),
        livenessProbe=probe("/health/live", 10),
    )


def test_a_chat_through_the_service_is_answered_by_a_restricted_pod(
    namespace: Namespace, engine_image: Image
) -> None:
    namespace.apply(engine(engine_image), service("engine", LABELS, 80, 8000))
    until(
        "the engine is ready",
        lambda: namespace.ready_pods("app=engine"),
        timeout_s=180,
        interval_s=0.5,
        seen=namespace.describe,
    )
    answer = json.loads(namespace.run_python("client", engine_image, ASK).splitlines()[-1])
    assert "Paris" in answer["text"]
    assert answer["streamed"] == answer["text"]
    assert 0 < answer["tokens"] <= 16
    assert answer["models"] == ["demo"]
    restarts = namespace.get("pod", "engine")["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 0
