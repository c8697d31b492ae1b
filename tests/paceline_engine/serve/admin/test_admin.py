"""The admin app over the in-process engine."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from paceline_crds.phases import DrainPhase
from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.admin.admin import create_admin_app
from paceline_engine.serve.admin.admin_token import AdminTokens
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.step.in_process import InProcessEngineClient
from paceline_engine.testing.fake_engine import FakeEngine
from paceline_engine.testing.streams import collect, make_request

Go = Callable[[httpx.AsyncClient, InProcessEngineClient, Drain], Awaitable[None]]
SETTINGS = {"maxNumSeqs": 4, "bootMaxNumSeqs": 8}


def play(tmp_path: Path, go: Go, config: ServeConfig | None = None) -> None:
    async def run() -> None:
        runner = FakeEngine(tmp_path, EngineSettings.model_validate(SETTINGS).booted())
        client = InProcessEngineClient(runner)
        drain = Drain(shutdown_timeout_s=30.0)
        app = create_admin_app(client, config or ServeConfig(model="tiny"), drain)
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await go(http, client, drain)
        finally:
            await client.close()

    asyncio.run(run())


def test_status_names_model_readiness_and_revision(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        body = (await http.get("/v1/paceline/status")).json()
        assert (body["ready"], body["model"], body["revision"]) == (True, "tiny", 0)
        assert body["capacity"]["kvTokens"] == 511 * 16
        drain.terminate(0.0)
        body = (await http.get("/v1/paceline/status")).json()
        assert (body["ready"], body["reason"]) == (False, "Draining")

    play(tmp_path, go)


def test_a_patch_is_applied_and_read_back(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.patch("/v1/paceline/settings", json={"maxNumSeqs": 6, "revision": 5})
        assert answer.json() == {
            "generation": 1,
            "revision": 5,
            "old": {"maxNumSeqs": 4},
            "new": {"maxNumSeqs": 6},
        }
        body = (await http.get("/v1/paceline/settings")).json()
        assert body["settings"]["maxNumSeqs"] == 6
        assert (body["generation"], body["revision"]) == (1, 5)

    play(tmp_path, go)


def test_the_log_tells_what_was_turned_and_what_was_refused_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        for body in ({"maxNumSeqs": 6, "revision": 5}, {"maxNumSeqs": 6}, {"maxNumSeqs": 9}):
            await http.patch("/v1/paceline/settings", json=body)

    with caplog.at_level(logging.INFO, "paceline_engine.serve.admin"):
        play(tmp_path, go)
    turned, refused = [line for line in caplog.messages if line.startswith("settings")]
    assert turned == "settings: maxNumSeqs 4 -> 6 (generation 1, revision 5)"
    assert refused.startswith("settings refused: ")
    assert "maxNumSeqs" in refused


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"maxNumSeqs": 0}, 400, "maxNumSeqs"),
        ({"maxNumSeqs": "many"}, 400, "maxNumSeqs"),
        ({"nonsense": 1}, 400, "nonsense"),
        ({"revision": "x"}, 400, "revision"),
        ({"revision": True}, 400, "revision"),
        ({"tenants": [{"name": "a", "weight": 0}]}, 400, "tenants"),
        ({"blockSize": 32}, 409, "blockSize"),
        ({"tensorParallelSize": 2}, 409, "tensorParallelSize"),
        ({"maxNumSeqs": 9}, 409, "maxNumSeqs"),
        ({"maxNumSeqs": 5, "revision": 0}, 412, "maxNumSeqs"),
        ([1], 400, "body"),
    ],
)
def test_a_refused_patch_is_an_error_object(
    tmp_path: Path, body: object, status: int, param: str
) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.patch("/v1/paceline/settings", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, param)
        assert set(error) == {"message", "type", "param", "code"}
        assert (await client.settings()).settings.max_num_seqs == 4

    play(tmp_path, go)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"maxNumSeqs": 1000000000000000000000000000000}', "maxNumSeqs"),
        ('{"maxNumSeqs": -1000000000000000000000000000000}', "maxNumSeqs"),
        ('{"schedulingPolicy": "\\ud800"}', "schedulingPolicy"),
        ('{"\\ud800": 1}', "\\ud800"),
        ('{"maxNumSeqs": 5, "revision": 1000000000000000000000000000000}', "revision"),
        ('{"maxNumSeqs": 5, "revision": 18446744073709551615}', "revision"),
    ],
)
def test_values_that_no_message_can_carry_are_refused_before_one_is_sent(
    tmp_path: Path, body: str, param: str
) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.patch(
            "/v1/paceline/settings", content=body, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    play(tmp_path, go)


def test_malformed_json_and_unknown_paths_are_error_objects(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.patch(
            "/v1/paceline/settings", content=b"{", headers={"content-type": "application/json"}
        )
        assert (answer.status_code, "error" in answer.json()) == (400, True)
        answer = await http.get("/v1/paceline/nothing")
        assert (answer.status_code, "error" in answer.json()) == (404, True)
        answer = await http.get("/v1/paceline/drain")
        assert (answer.status_code, "error" in answer.json()) == (405, True)

    play(tmp_path, go)


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        ("{", "application/json", "got no JSON (Expecting property name"),
        ("[]", "application/json", "got []; send an object"),
        ("", "application/json", "got none; send one"),
        (
            b'{"maxNumSeqs": "\xff"}',
            "application/json",
            "got no UTF-8 text (byte 0xff at position 16)",
        ),
        ('{"a":' * 100_000, "application/json", "nested too deeply"),
        ("{}", "text/plain", "send the header `Content-Type: application/json`"),
    ],
)
def test_a_body_that_is_no_object_is_told_what_it_should_be(
    tmp_path: Path, body: str | bytes, kind: str, part: str
) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.patch(
            "/v1/paceline/settings", content=body, headers={"content-type": kind}
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "body")
        assert error["message"].startswith('the body must be a JSON object such as {"maxNumSeqs"')
        assert part in error["message"]
        answer = await http.post("/v1/paceline/drain", json=[1])
        assert 'such as {"propagation_s": 5}, got [1]' in answer.json()["error"]["message"]
        answer = await http.get("/v1/paceline/steps?limit=0")
        message = answer.json()["error"]["message"]
        assert message.startswith("limit: ")
        assert 'got "0"; change limit' in message

    play(tmp_path, go)


def test_the_target_in_force_is_shown_wherever_it_comes_from(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        async def shown() -> tuple[int | None, int | None]:
            body = (await http.get("/v1/paceline/settings")).json()
            name = "interTokenTargetMs"
            return body["settings"][name], body["inForce"][name]

        assert await shown() == (None, None)
        await http.patch("/v1/paceline/settings", json={"sloItlMs": 50})
        assert await shown() == (None, 50)
        await http.patch("/v1/paceline/settings", json={"interTokenTargetMs": 30})
        assert await shown() == (30, 30)
        await http.patch("/v1/paceline/settings", json={"interTokenTargetMs": 0})
        assert await shown() == (0, None)

    play(tmp_path, go)


def test_a_drain_begins_by_post_with_its_propagation_time(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        for bad in ({"propagation_s": -1}, {"propagation_s": "5"}, {"seconds": 5}):
            answer = await http.post("/v1/paceline/drain", json=bad)
            assert (answer.status_code, drain.phase) == (400, DrainPhase.SERVING)
        answer = await http.post("/v1/paceline/drain", json={"propagation_s": 60})
        assert answer.json() == {"phase": "Propagating"}
        assert drain.accepts_new
        assert not drain.is_ready

    play(tmp_path, go)


def test_requests_say_why_they_wait_and_steps_what_they_did(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        streams = [await client.submit(make_request(i, max_tokens=3000)) for i in range(6)]
        rows = (await http.get("/v1/paceline/requests")).json()["requests"]
        assert [row["state"] for row in rows].count("running") == 4
        assert all(row["waitReason"] for row in rows if row["state"] == "waiting")
        for stream in streams:
            client.abort(stream.request_id)
        await asyncio.gather(*map(collect, streams))
        steps = (await http.get("/v1/paceline/steps?limit=2")).json()["steps"]
        assert len(steps) == 2
        assert steps[0]["stepId"] + 1 == steps[1]["stepId"]
        trace = (await http.get("/v1/paceline/steps?format=chrome")).json()
        assert {event["name"] for event in trace["traceEvents"]} >= {"plan", "forward", "requests"}
        assert (await http.get("/v1/paceline/steps?limit=0")).status_code == 400

    play(tmp_path, go)


def test_a_recording_is_a_download_of_requests_and_steps(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        await collect(await client.submit(make_request(1, tuple(range(64)), max_tokens=5)))
        gone = await client.submit(make_request(2, tuple(range(70)), max_tokens=3000))
        client.abort(gone.request_id)
        await collect(gone)
        answer = await http.get("/v1/paceline/recording")
        assert "recording.json" in answer.headers["content-disposition"]
        body = answer.json()
        assert body["settings"]["maxNumSeqs"] == 4
        assert body["limits"]["blockSize"] == body["settings"]["blockSize"]
        requests, steps = body["requests"], body["steps"]
        assert requests["numPromptTokens"] == [64, 70]
        assert requests["numOutputTokens"][0] == 5
        assert requests["reason"] == ["length", "abort"]
        assert requests["numPrefixTokens"] == [0, 64]
        assert {len(column) for column in steps.values()} == {len(steps["stepId"])}
        assert steps["attentionPairs"][0] == 64 * 65 // 2
        assert all(ms > 0 for ms in steps["forwardMs"])

    play(tmp_path, go)


def test_the_prefix_cache_is_forgotten_on_demand(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        await collect(await client.submit(make_request(1, tuple(range(64)))))
        answer = await http.post("/v1/paceline/reset_prefix_cache")
        assert answer.json()["blocks"] >= 4

    play(tmp_path, go)


def test_a_lost_engine_is_a_503(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        client.lose("EngineDied", "gone")
        answer = await http.get("/v1/paceline/settings")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "gone")
        body = (await http.get("/v1/paceline/status")).json()
        assert (body["ready"], body["live"], body["reason"]) == (False, False, "EngineDied")

    play(tmp_path, go)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_two_digests_are_accepted_and_a_new_file_counts_at_once(tmp_path: Path) -> None:
    def digest(token: str) -> str:
        return hashlib.sha256(token.encode()).hexdigest()

    file = tmp_path / "digests"
    file.write_text(f"{digest('old')}\n{digest('new')}\n")

    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        async def status(headers: dict[str, str]) -> int:
            return (await http.get("/v1/paceline/status", headers=headers)).status_code

        assert [await status(bearer(token)) for token in ("old", "new", "other")] == [200, 200, 401]
        assert await status({}) == 401
        assert await status({"Authorization": "Basic b2xk"}) == 401
        file.write_text(digest("new"))
        assert [await status(bearer(token)) for token in ("old", "new")] == [401, 200]
        file.unlink()
        assert await status(bearer("new")) == 503

    play(tmp_path, go, ServeConfig(model="tiny", admin_token_sha256_file=file))


def test_a_plain_token_file_works_and_unknown_paths_ask_for_it_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")

    async def go(http: httpx.AsyncClient, client: InProcessEngineClient, drain: Drain) -> None:
        answer = await http.get("/v1/paceline/nothing")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "an admin token is needed" in answer.json()["error"]["message"]
        answer = await http.get("/v1/paceline/settings", headers=bearer("wrong"))
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "is not accepted here" in answer.json()["error"]["message"]
        answer = await http.get("/v1/paceline/settings", headers=bearer("secret"))
        assert answer.status_code == 200

    play(tmp_path, go, ServeConfig(model="tiny", admin_token_file=file))


@pytest.mark.parametrize("text", ["", "abc", "\n".join(["0" * 64] * 3)])
def test_a_digest_file_with_something_else_ends_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "digests"
    file.write_text(text)
    tokens = AdminTokens(ServeConfig(model="tiny", admin_token_sha256_file=file))
    with pytest.raises(StartFailed, match="1 to 2 SHA-256 digests"):
        tokens.check_readable()


def test_a_missing_file_and_two_files_end_the_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(StartFailed, match="missing"):
        AdminTokens(ServeConfig(model="tiny", admin_token_file=missing)).check_readable()
    both = ServeConfig(model="t", admin_token_file=missing, admin_token_sha256_file=missing)
    with pytest.raises(StartFailed, match="exclude each other"):
        AdminTokens(both)
