"""`paceline run -f manifest.yaml`: what an LLMDeployment says, on this machine."""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import EXIT_FAILED, EXIT_OK, CommandError
from paceline.terminal import say, write
from paceline_crds import llmdeployment
from paceline_crds.errors import InvalidManifest
from paceline_crds.phases import StartupPhase

if TYPE_CHECKING:
    from paceline.local import LocalPlan
    from paceline.supervisor import RunFiles
    from paceline.tuner.local import LocalTuner
    from paceline_crds.spec import LLMDeploymentSpec

_HOST = "127.0.0.1"
_TICK_S = 0.2


def add_command(commands: Any) -> None:
    """Add the parser of `run`."""
    from paceline.serve import port

    parser = commands.add_parser(
        "run",
        help="run a manifest on this machine",
        description="Start what an LLMDeployment describes on this machine, stream a sample "
        "answer, and serve until Ctrl-C.",
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="the manifest; - reads standard input"
    )
    parser.add_argument("--port", type=port, help="port of the endpoint (default: service.port)")
    parser.add_argument(
        "--api-key-file",
        default="",
        metavar="FILE",
        help="keys, in place of apiKeySecretRef (default: none is asked for)",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", help="the question of the sample answer (default: a short one)"
    )
    parser.add_argument("--no-sample", action="store_true", help="ask no sample question")
    parser.set_defaults(handler=run)


def read_manifest(file: str) -> llmdeployment.LLMDeployment:
    """Read and check a manifest.

    Raises:
        CommandError: the file cannot be read, or what is wrong with it, a line each.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CommandError(
            f"the manifest {file} cannot be read: {why}; give the path of an LLMDeployment with -f"
        ) from error
    try:
        return llmdeployment.loads(text)
    except InvalidManifest as error:
        raise CommandError(f"{file} is no valid LLMDeployment:\n{error}") from error


def run(args: argparse.Namespace) -> int:
    """Run until a signal, or until no replica can be kept running."""
    from paceline import endpoint
    from paceline.local import plan_of

    deployment = read_manifest(args.file)
    if args.api_key_file:
        _check_keys(Path(args.api_key_file))
    plan = plan_of(deployment, environ=os.environ, api_key_file=args.api_key_file, port=args.port)
    with endpoint.listening(plan.port) as listener:
        return _run_plan(args, plan, deployment.spec, listener)


def _run_plan(
    args: argparse.Namespace,
    plan: "LocalPlan",
    spec: "LLMDeploymentSpec",
    listener: socket.socket,
) -> int:
    if plan.num_replicas == 1:
        listener.close()  # it was free; the replica itself listens there
    say(f"{plan.name}: {plan.num_replicas} x {plan.model_name} on this machine")
    if plan.ignored:
        say(f"ignored on this machine: {', '.join(plan.ignored)}")
    return asyncio.run(_LocalRun(args, plan, spec, listener).run())


def _check_keys(file: Path) -> None:
    """Here already: a replica would tell it seconds later, in its log."""
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.serve.openai.auth import ApiKeys

    try:
        ApiKeys(file)
    except StartFailed as error:
        raise CommandError(str(error)) from error


def make_files() -> "RunFiles":
    """A private folder with an admin token that only this run knows."""
    from paceline.supervisor import RunFiles

    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    token_file = folder / "admin-token"
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    return RunFiles(folder=folder, admin_token_file=token_file)


class _LocalRun:
    """One `paceline run`; lives in one event loop."""

    def __init__(
        self,
        args: argparse.Namespace,
        plan: "LocalPlan",
        spec: "LLMDeploymentSpec",
        listener: socket.socket,
    ) -> None:
        from paceline.supervisor import Supervisor

        self._args = args
        self._plan = plan
        self._spec = spec
        self._listener = listener
        self._files = make_files()
        self._supervisor: Supervisor = Supervisor(plan, self._files, os.environ, say)
        self._tuner: LocalTuner | None = None
        self._num_signals = 0

    async def run(self) -> int:
        """From the first process to the last; returns the exit code."""
        from paceline import endpoint

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)
        async with contextlib.AsyncExitStack() as stack:
            if self._plan.num_replicas > 1:
                replicas = self._supervisor.replicas
                await stack.enter_async_context(endpoint.serving_proxy(replicas, self._listener))
            watching = asyncio.create_task(self._supervisor.watch())
            keeping = asyncio.create_task(self._supervisor.run())
            try:
                if await self._until_ready({keeping, watching}):
                    await self._greet()
                    stack.callback(self._begin_to_tune().cancel)
                await asyncio.wait({keeping, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()  # it never ends by itself
            finally:
                watching.cancel()
                self._supervisor.signal_all(signal.SIGKILL)
        if any(member.exit_code for member in self._supervisor.members):
            raise self._start_failure()
        for line in self._tuner.farewell() if self._tuner else ():
            say(line)
        shutil.rmtree(self._files.folder, ignore_errors=True)
        say("stopped")
        return EXIT_OK

    def _begin_to_tune(self) -> "asyncio.Task[None]":
        """The tuner, as `spec.tuning` says; its failure is told and ends nothing else."""
        from paceline.tuner.local import LocalTuner

        self._tuner = LocalTuner(self._spec, self._supervisor, self._files, say)
        return asyncio.create_task(self._tuner.run())

    def _on_signal(self) -> None:
        """First: drain. Second: end the wait. Third: end the processes."""
        self._num_signals += 1
        if self._num_signals == 1:
            running = sum(r.num_outstanding for r in self._supervisor.replicas.all)
            what = f"{running} requests still run" if running else "running requests finish"
            say(f"\ndraining: {what}; Ctrl-C again ends the wait")
        elif self._num_signals == 2:
            say("ending the requests that run; Ctrl-C again ends the processes")
        number = signal.SIGKILL if self._num_signals > 2 else signal.SIGINT
        self._supervisor.signal_all(number)

    def _on_hang_up(self) -> None:
        """The terminal was closed: drain. Shell and kernel both say so: never the second signal."""
        if not self._num_signals:
            self._on_signal()

    async def _until_ready(self, tasks: set[asyncio.Task[None]]) -> bool:
        """Show progress until every replica is ready; False if that will not happen."""
        from paceline.progress import Progress, line

        shown = Progress(write, is_terminal=sys.stdout.isatty())
        members = self._supervisor.members
        try:
            while not all(member.has_been_ready for member in members):
                if self._supervisor.is_stopping or any(task.done() for task in tasks):
                    return False
                if any(member.exit_code is not None for member in members):
                    self._supervisor.signal_all(signal.SIGTERM)
                    return False
                shown.show(
                    line(
                        [
                            {"phase": StartupPhase.READY} if m.has_been_ready else m.startup
                            for m in members
                        ]
                    )
                )
                await asyncio.sleep(_TICK_S)
            shown.show("ready")
            return True
        finally:
            shown.end()

    async def _greet(self) -> None:
        from paceline import sample

        url = f"http://{_HOST}:{self._plan.port}"
        key_file = self._args.api_key_file
        key = sample.plain_key(key_file) if key_file else ""
        if not self._args.no_sample and (key or not key_file):
            prompt = self._args.prompt or sample.DEFAULT_PROMPT
            say(f"\n> {prompt}")
            error = await sample.stream_answer(
                url, self._plan.model_name, prompt, write, api_key=key
            )
            say(f"\nthe sample failed: {error}" if error else "")
        if self._supervisor.is_stopping:
            return
        say(f"\nserving {self._plan.model_name} on {url}\n")
        say(sample.how_to_ask(url, self._plan.model_name, needs_key=bool(key_file)))
        say("")
        for member in self._supervisor.members:
            say(self._supervisor.how_to_see_settings(member))
        say(f"logs: {self._files.folder}\nCtrl-C drains and stops")

    def _start_failure(self) -> CommandError:
        """Why the first replica that did not start did not; its exit code becomes ours."""
        member = next(member for member in self._supervisor.members if member.exit_code)
        index, exit_code = member.replica.index, member.exit_code or EXIT_FAILED
        startup = member.startup or {}
        reason = startup.get("message") if startup.get("phase") == StartupPhase.FAILED else ""
        tail = "\n".join(self._supervisor.log_tail(index))
        return CommandError(
            f"replica {index} did not start (exit code {exit_code})"
            + (f": {reason}" if reason else f"; the end of its log:\n{tail}")
            + f"\nwhole log: {self._files.log_of(index)}",
            exit_code if exit_code > 0 else EXIT_FAILED,
        )
