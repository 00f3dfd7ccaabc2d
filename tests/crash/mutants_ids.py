"""Sabotages of the rules about ids: deduplication, senders, expiry."""

from __future__ import annotations

from tests.crash.sabotage import one

SENDERS = "delivery.protocol.senders:"
RUNNER = "delivery.runner:LaneRunner."
JUDGE = "delivery.judge:"
LATENESS = "delivery.lateness:Trust."
INDEX = "dedup.index:ExactIndex."

IDS = (
    # Deduplication ----------------------------------------------------------------------------
    one(
        "classify without own pending bundles",
        "solo",
        RUNNER + "_classify",
        "pending = [self.state.work[ticket].verdicts for ticket in classify.after]",
        "pending = []",
    ),
    one(
        "repeats inside a bundle not noticed",
        "stage",
        JUDGE + "Judge._drop_decided",
        "repeated = ~firsts(listed)[len(listed) - len(ids) :]",
        "alone = [np.concatenate([*before, ids[at : at + 1]]) for at in range(len(ids))]\n"
        "    repeated = np.array([not firsts(one)[-1] for one in alone], dtype=np.bool_)",
    ),
    one(
        "index not asked",
        "zombie",
        JUDGE + "Judge._drop_decided",
        "decided = self._index.decided(ids, buckets)",
        "decided = np.zeros(len(ids), dtype=np.bool_)",
    ),
    one(
        "tag moved without the winner's segment",
        "zombie",
        INDEX + "_follow",
        "self._take(head, seals)",
        "self._take(head, [])",
    ),
    one(
        "filter of another history trusted",
        "restored-hosts",
        INDEX + "_follow",
        "not self._on_history(tag, head)",
        "tag.seq > head.ref.seq",
    ),
    one(
        "own ids taken over out of turn",
        "shared",
        INDEX + "took",
        "(tag.incarnation, tag.seq + 1) != (ref.incarnation, ref.seq)",
        "tag.seq >= ref.seq",
    ),
    # Senders ----------------------------------------------------------------------------------
    one(
        "read seq from an unsealed frontier",
        "chain",
        JUDGE + "Judge.judge",
        "for read in head.read_seqs}",
        "for read in self._learned(head.frontier.merged(end))}",
    ),
    one(
        "read seq shared between receiver lanes",
        "fan-out",
        JUDGE + "Judge.judge",
        "for read in head.read_seqs}",
        "for lane in self._catalog.lanes()\n"
        "        for read in self._catalog.load(lane).head.read_seqs}",
    ),
    one(
        "read seq learned past one of two partitions",
        "wide",
        SENDERS + "learned",
        "if _past(row.ack.delivered, ours):",
        "if any(offset >= (row.ack.delivered.at(source) or 0) for source, offset in ours):",
    ),
    one(
        "read seq without incarnation",
        "restored-apart",
        SENDERS + "standing",
        "reads.get((mark.sender, mark.incarnation, topic), -1) >= mark.seq",
        "max((n for (s, _, t), n in reads.items() if (s, t) == (mark.sender, topic)),"
        " default=-1) >= mark.seq",
    ),
    one(
        "delivered offset read before the acknowledgement",
        "chain",
        JUDGE + "Judge._learned",
        "    rows = {sender: row for sender in self._senders() if (row := self._read(sender))}\n",
        "    before = dict(self._rows)\n"
        "    rows = {sender: row for sender in self._senders() if (row := self._read(sender))}\n"
        "    for sender in rows.keys() & before.keys():\n"
        "        row, old = rows[sender], before[sender].ack.delivered\n"
        "        torn = type(row.ack)(row.ack.incarnation, row.ack.seq, old)\n"
        "        rows[sender] = LaneRow(head=row.head, ack=torn, collected=row.collected)\n",
    ),
    one(
        "copied header trusted as a sender",
        "copied",
        SENDERS + "_on_history",
        "topic not in row.head.writes",
        "False",
    ),
    one(
        "record of an abandoned incarnation accepted",
        "restored",
        SENDERS + "_on_history",
        "Standing.EXTERNAL if current else Standing.ABANDONED",
        "Standing.EXTERNAL if current else None",
    ),
    one(
        "stale sender row trusted",
        "chain",
        SENDERS + "standing",
        "found if fresh else Standing.REREAD",
        "found",
    ),
    # Expiry -----------------------------------------------------------------------------------
    one(
        "bucket dropped with one sender lane uncovered",
        "two-senders",
        "dedup.expiry:forgettable",
        "return all(",
        "return any(",
    ),
    one(
        "kept id dropped by coverage",
        "rekeyed",
        JUDGE + "Judge._mark",
        "if verdict is Standing.INTERNAL:",
        "if verdict in (Standing.INTERNAL, Standing.KEPT):",
    ),
    one(
        "external id bucketed by its own timestamp",
        "window",
        "delivery.verdicts:Verdicts.parts",
        "Bucket.at(Origin.EXTERNAL, max(lane_time_ms, self.named_ms))",
        "Bucket.at(Origin.EXTERNAL, int(self.picks[0].batch.timestamps_ms.max()))",
    ),
    one(
        "external id dropped without its window",
        "window",
        "dedup.expiry:outlived",
        "bucket.end_ms + window_ms",
        "bucket.end_ms",
    ),
    # A time that is trusted --------------------------------------------------------------------
    one(
        "too late by its time, and taken for fresh",
        "timed",
        LATENESS + "_newest_ms",
        "late |= numbers == number",
        "late |= False",
    ),
    one(
        "lane time from Kafka's stamp though another is trusted",
        "timed",
        JUDGE + "Judge.judge",
        "elif self._trust is None:",
        "else:",
    ),
    one(
        "id let go before its time is too late",
        "timed-ahead",
        LATENESS + "put_aside",
        "max(verdicts.named_ms, newest_ms)",
        "verdicts.named_ms",
    ),
    one(
        "kept id taken from a copied header",
        "copied",
        JUDGE + "Judge._mark",
        "elif verdict is not Standing.EXTERNAL:",
        "elif verdict is not Standing.EXTERNAL or mark.kept:",
    ),
    # Time behind re-keying --------------------------------------------------------------------
    one(
        "lane time behind re-keying from when a record was sent on",
        "rekeyed-lag",
        JUDGE + "Judge.judge",
        "if self._memory.rekeyed:",
        "if False:",
    ),
    one(
        "re-keyed id bucketed by the time of the slowest partition",
        "rekeyed-lag",
        "delivery.verdicts:Verdicts.parts",
        "max(lane_time_ms, self.named_ms)",
        "lane_time_ms",
    ),
    one(
        "lane time behind re-keying from the fastest partition",
        "rekeyed-ahead",
        SENDERS + "Horizon.time_ms",
        "return min(",
        "return max(",
    ),
    one(
        "partition taken for read to its end though its log goes on",
        "rekeyed-ahead",
        SENDERS + "Horizon.looked",
        "ended or _is_at_end(row, high)",
        "True",
    ),
    one(
        "sender's time counted before what it delivered is read",
        "rekeyed-ahead",
        SENDERS + "Horizon.time_ms",
        "[one.time_ms for one in mine if _past(one.delivered, frontier)]",
        "[one.time_ms for one in mine]",
    ),
    one(
        "partition not waited for that has no lane yet",
        "rekeyed-ahead",
        SENDERS + "Horizon.time_ms",
        "if not self.whole:",
        "if False:",
    ),
)
