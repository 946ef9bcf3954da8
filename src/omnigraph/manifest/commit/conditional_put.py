"""The conditional put by which a manifest comes to be, and how its outcome is settled."""

from collections.abc import Callable
from dataclasses import dataclass

from omnigraph.errors import Damaged, OmnigraphError, OutcomeUnknown, UnsupportedFormat
from omnigraph.manifest.commit.contention import ContentionControl
from omnigraph.manifest.model.manifest import Entry, Manifest, TxnId, txn_ids
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.objects.object_store import PutOutcome, PutResult


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """How long a write that loses races is retried, and how it makes room for others meanwhile."""

    time_limit_s: float = 60.0
    first_wait_s: float = 0.01  # the unit of waits until the latency of a put is known
    wait_max_s: float = 1.0

    def ceiling_s(self, attempts: int) -> float:
        return min(self.wait_max_s, self.first_wait_s * 2.0 ** min(attempts, 16))


class ConditionalPut:
    def __init__(
        self, manifests: Manifests, contention: ContentionControl, runtime: Runtime, policy: PublishPolicy
    ) -> None:
        self._manifests = manifests
        self._contention = contention
        self._runtime = runtime
        self._policy = policy

    def create(self, manifest: Manifest) -> PutResult:
        """One create-if-absent under the manifest's number. No other code creates manifests."""
        self._contention.on_put(manifest)
        before = self._runtime.clock.monotonic()
        result = self._manifests.create(manifest)
        self._contention.on_latency(self._runtime.clock.monotonic() - before)
        return result

    def put(
        self, manifest: Manifest, txn_id: TxnId, deadline: float, before_retry: Callable[[], None] | None = None
    ) -> Entry:
        """`settle-by-reading`: create; unless the response is "created", read the number.

        Returns what is there: the manifest itself, another entry with its transactions, or the winner of the race.
        Absent after a lost response means that the put may still take effect, so the same body goes to the same number
        again until some object is there. Giving up then is `OutcomeUnknown`. `before_retry` is called before each wait.
        """
        may_have_landed = False
        for attempt in range(1, 1 << 30):
            refusal: OmnigraphError | None = None
            entry: Entry | None = None
            try:
                result = self.create(manifest)
                if result.outcome is PutOutcome.CREATED:
                    return manifest
                may_have_landed = may_have_landed or result.outcome is PutOutcome.UNKNOWN
            except OmnigraphError as error:  # denied or full: this put took no effect, an earlier one may have
                refusal = error
            try:
                entry = self._manifests.read(manifest.point, cached=False)
            except (Damaged, UnsupportedFormat):
                raise  # an object is there, and ours would be readable
            except OmnigraphError as error:
                may_have_landed = may_have_landed or refusal is None  # "exists" may have been about our own object
                refusal = refusal or error
            if entry is not None and is_committed(entry, manifest):
                return entry
            if refusal is not None and (entry is not None or not may_have_landed):
                raise refusal
            if entry is not None:
                return entry
            meter.record_retry()
            if self._runtime.clock.monotonic() > deadline:
                raise OutcomeUnknown(txn_id, manifest.branch, manifest.manifest_version) from refusal
            if before_retry is not None:
                before_retry()
            self._runtime.clock.sleep(self._runtime.jitter(self._policy.ceiling_s(attempt)))
        raise AssertionError("unreachable")


def is_committed(entry: Entry, manifest: Manifest) -> bool:
    """Whether the entry under a manifest's number contains its transactions. The first manifest of a branch has none.

    With a supplied txn id it may be an earlier call's entry, which staged other files: then those count.
    """
    if entry is manifest:
        return True
    own = txn_ids(manifest)
    return (bool(own) and own <= txn_ids(entry)) or _is_same_first_manifest(entry, manifest)


def _is_same_first_manifest(entry: Entry, manifest: Manifest) -> bool:
    """Only its creator, who generated the branch id, ever puts a living manifest 1."""
    return manifest.manifest_version == 1 and entry.tombstone is None and manifest.tombstone is None
