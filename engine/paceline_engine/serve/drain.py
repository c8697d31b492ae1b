"""The drain of one server, as a pure state machine: the clock and the load come in as arguments.

Serving -> Propagating (not ready, still accepting) -> Draining (refusing, running ones finish)
-> Drained. It is one-way. A drain begun over HTTP stays Drained without an exit, because a process
that ended would be restarted; only a signal ends the process.
"""

from paceline_crds.phases import DrainPhase


class Drain:
    """State of one server's drain; mutable, owned by the server's event loop.

    Attributes:
        phase: as of the last call.
        is_exit_wanted: a signal came: the process ends once drained.
        is_cut_short: running requests must end now: the grace is over or a second signal came.
        reason: what began the drain, for people.
    """

    def __init__(self, *, shutdown_timeout_s: float, sigterm_propagation_s: float = 0.0) -> None:
        self.phase = DrainPhase.SERVING
        self.is_exit_wanted = False
        self.is_cut_short = False
        self.reason = ""
        self._shutdown_timeout_s = shutdown_timeout_s
        self._sigterm_propagation_s = sigterm_propagation_s
        self._refuse_at_s: float | None = None
        self._cut_at_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether endpoints may route here, as far as the drain is concerned."""
        return self.phase is DrainPhase.SERVING

    @property
    def accepts_new(self) -> bool:
        """Whether a new request is taken."""
        return self.phase in {DrainPhase.SERVING, DrainPhase.PROPAGATING}

    @property
    def closes_connections(self) -> bool:
        """Whether responses carry `Connection: close`, so that kept-alive clients move on."""
        return self.phase is not DrainPhase.SERVING

    @property
    def may_exit(self) -> bool:
        """Whether the process may end now."""
        return self.is_exit_wanted and self.phase is DrainPhase.DRAINED

    def post(self, now: float, propagation_s: float) -> None:
        """Begin over HTTP, through both phases. A drain that has begun is left as it is.

        Only a phase 1 that a signal began has no end yet, and gets one.
        """
        if self.phase is DrainPhase.SERVING:
            self._propagate(now + propagation_s, "POST")
        elif self.phase is DrainPhase.PROPAGATING and self._refuse_at_s is None:
            self._refuse_at_s = now + propagation_s

    def announce(self, _now: float) -> None:
        """SIGUSR1, from a preStop hook: phase 1, until SIGTERM; the hook's duration is its time."""
        if self.phase is DrainPhase.SERVING:
            self._propagate(None, "SIGUSR1")

    def terminate(self, now: float) -> None:
        """SIGTERM: drain and exit; the second signal ends the wait.

        After a POST or a preStop hook, or without a propagation time of its own, this begins
        phase 2 at once.
        """
        if self._is_repeated():
            return
        self.is_exit_wanted = True
        if self.phase is DrainPhase.SERVING and self._sigterm_propagation_s > 0:
            self._propagate(now + self._sigterm_propagation_s, "SIGTERM")
        else:
            self._refuse(now, "SIGTERM")

    def interrupt(self, now: float) -> None:
        """Ctrl-C: as SIGTERM, without a propagation time."""
        if self._is_repeated():
            return
        self.is_exit_wanted = True
        self._refuse(now, "Ctrl-C")

    def hang_up(self, now: float) -> None:
        """SIGHUP, the terminal was closed: as Ctrl-C, but never the second signal.

        A shell and the kernel both send it.
        """
        if not self.is_exit_wanted:
            self.is_exit_wanted = True
            self._refuse(now, "SIGHUP")

    def advance(self, now: float, num_open_requests: int) -> DrainPhase:
        """Move on as far as time and load allow; call it often while draining.

        Args:
            now: monotonic seconds.
            num_open_requests: requests whose answer is not fully sent.
        """
        if self.phase is DrainPhase.PROPAGATING and (
            self.is_cut_short or (self._refuse_at_s is not None and now >= self._refuse_at_s)
        ):
            self._refuse(now, self.reason)
        if self.phase is DrainPhase.DRAINING:
            if self._cut_at_s is not None and now >= self._cut_at_s:
                self.is_cut_short = True
            if num_open_requests == 0:
                self.phase = DrainPhase.DRAINED
        return self.phase

    def seconds_left(self, now: float) -> float | None:
        """Time until running requests are cut; None while there is no such limit."""
        return None if self._cut_at_s is None else max(0.0, self._cut_at_s - now)

    def _is_repeated(self) -> bool:
        if self.is_exit_wanted:
            self.is_cut_short = True
        return self.is_exit_wanted

    def _propagate(self, refuse_at_s: float | None, reason: str) -> None:
        self.phase = DrainPhase.PROPAGATING
        self.reason = reason
        self._refuse_at_s = refuse_at_s

    def _refuse(self, now: float, reason: str) -> None:
        """Enter phase 2; only a wanted exit limits how long running requests may go on."""
        if self.phase is not DrainPhase.DRAINED:
            self.phase = DrainPhase.DRAINING
        self.reason = self.reason or reason
        if self.is_exit_wanted and self._cut_at_s is None:
            self._cut_at_s = now + self._shutdown_timeout_s
