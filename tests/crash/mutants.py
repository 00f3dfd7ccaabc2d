"""One-line sabotages of every rule of the protocol.

Each names the rule it breaks and the world in which breaking it can be seen.
"""

from __future__ import annotations

from tests.crash.mutants_ids import IDS
from tests.crash.sabotage import Edit, Mutant, one

LANE = "delivery.protocol.lane:"
STATE = "delivery.protocol.state:"
RUNNER = "delivery.runner:LaneRunner."
MEMORY = "dedup.catalog.memory:MemoryStore."
CATALOG = "dedup.catalog.catalog:"
COLLECT = "dedup.collect:"
BACKUP = "dedup.backup:"
REMAKER = "delivery.remaking:Remaker."
SINK = "sinks.memory:MemoryEmitter."

MUTANTS = (
    *IDS,
    # The seal ---------------------------------------------------------------------------------
    one(
        "emit before seal",
        "solo",
        RUNNER + "_store",
        "return m.Stored(store.ticket, seal)",
        "self._emitter.emit(emissions(work.origin, work.rows))\n"
        "    return m.Stored(store.ticket, seal)",
    ),
    one(
        "unknown append taken for won",
        "solo",
        LANE + "_appended",
        "event.outcome is m.Outcome.WON",
        "event.outcome is not m.Outcome.LOST",
    ),
    one(
        "lost append taken for won",
        "zombie",
        LANE + "_appended",
        "event.outcome is m.Outcome.WON",
        "event.outcome is not m.Outcome.UNKNOWN",
    ),
    one(
        "absent after timeout taken for lost",
        "solo",
        LANE + "_resolved",
        "row.head.ref.seq >= bundle.ref.seq",
        "event.entry is None or row.head.ref.seq >= bundle.ref.seq",
    ),
    one(
        "absent after timeout taken for won",
        "solo",
        LANE + "_resolved",
        "event.entry == bundle.ref.attempt",
        "event.entry in (None, bundle.ref.attempt)",
    ),
    one(
        "refusal taken for lost without a look",
        "solo",
        LANE + "_appended",
        "    # SUBTLE",
        "    if event.outcome is m.Outcome.LOST:\n        return _lost(lane)\n    # SUBTLE",
    ),
    one(
        "append comparing seq only",
        "restored-beside",
        MEMORY + "append",
        "row.ref != expected",
        "row.ref.seq != expected.seq",
    ),
    one(
        "append comparing the absence of an entry",
        "collected",
        MEMORY + "append",
        "row.ref != expected",
        "(lane, ref.incarnation, ref.seq) in self.tables.entries",
    ),
    one(
        "append of k+1 before k is won",
        "solo",
        LANE + "_append_oldest",
        "    bundle = lane.pending[0]\n",
        "    bundle = next(b for b in lane.pending[::-1] if b.step is Step.STORED)\n",
    ),
    one(
        "pending bundles kept after a lost race",
        "zombie",
        LANE + "_lost",
        "pending=(), held=held",
        "pending=lane.pending, held=lane.held",
    ),
    Mutant(
        "attempt missing from the output key",
        "zombie",
        (
            Edit(
                "delivery.storing:store_bundle",
                "ref.seq, ref.attempt)",
                "ref.seq, bytes(16))",
            ),
            Edit(
                CATALOG + "Catalog.get",
                "seal.ref.seq, seal.ref.attempt)",
                "seal.ref.seq, bytes(16))",
            ),
        ),
    ),
    one(
        "entry that expires",
        "solo",
        MEMORY + "append",
        "        return True",
        "        self.tables.entries.pop((lane, ref.incarnation, ref.seq - 1), None)\n"
        "        return True",
    ),
    one(
        "minted-at from the clock alone",
        "solo",
        LANE + "_classified",
        "max(event.now_ms, before.minted_at_ms + 1)",
        "event.now_ms",
    ),
    # The frontier -----------------------------------------------------------------------------
    one(
        "gap at the frontier accepted",
        "checkpoint",
        STATE + "span_of",
        "expected is None or offset > expected",
        "expected is None",
    ),
    one(
        "rows below the frontier not dropped",
        "zombie",
        STATE + "unsealed",
        "max(offset, frontier.at(source) or 0)",
        "offset",
    ),
    one(
        "start position not appended",
        "latest",
        LANE + "_adopt",
        "head=row.head,",
        "head=row.head if row.head.ref.seq else replace(row.head, frontier=lane.start),",
    ),
    one(
        "new incarnation not noticed",
        "restored-beside",
        LANE + "_resolved",
        "row is None or row.head.ref.incarnation != bundle.ref.incarnation",
        "row is None",
    ),
    # Emission and acknowledgement -------------------------------------------------------------
    one(
        "acknowledge before flush",
        "solo",
        LANE + "_acknowledge_prefix",
        "        if debt.delivered is None:\n            break\n"
        "        ack = Ack(ack.incarnation, debt.seq, ack.delivered.merged(debt.delivered))",
        "        ack = Ack(ack.incarnation, debt.seq,"
        " ack.delivered.merged(debt.delivered or type(ack.delivered)()))",
    ),
    one(
        "acknowledge a range somebody else won",
        "zombie",
        LANE + "_owe",
        "*(Owed(seq) for seq in seqs)",
        "*(Owed(seq, None if ticket is not None else type(lane.acked.delivered)()) for seq in seqs)",
    ),
    one(
        "sealed before a crash, never emitted again",
        "solo",
        LANE + "_adopt",
        "_owe(lane, row.settled, row.head.ref.seq)",
        "_owe(lane, row.head.ref.seq, row.head.ref.seq)",
    ),
    one(
        "outputs that somebody else delivered taken for lost",
        "aside-collected",
        LANE + "_row_read",
        "event.missing is not None and event.missing > row.settled",
        "event.missing is not None",
    ),
    one(
        "what others acknowledged owed again",
        "deep-overlap",
        LANE + "_owe",
        "max(after, lane.acked.seq)",
        "after",
    ),
    one(
        "torn acknowledgement",
        "solo",
        LANE + "_acknowledge_prefix",
        "ack.delivered.merged(debt.delivered)",
        "ack.delivered",
    ),
    one(
        "delivered offsets without the maximum",
        "solo",
        LANE + "_acknowledge_prefix",
        "ack.delivered.merged(debt.delivered)",
        "debt.delivered",
    ),
    one(
        "delivered offset taken before the record",
        "solo",
        SINK + "emit",
        "behind[source] = self._append(source, record) + 1",
        "behind[source] = self._append(source, record)",
    ),
    one(
        "acknowledgement without incarnation",
        "restored-beside",
        MEMORY + "acknowledge",
        "(row.ack.incarnation, row.ack.seq) != (expected.incarnation, expected.seq)",
        "row.ack.seq != expected.seq",
    ),
    one(
        "lost acknowledgement taken for won",
        "zombie",
        LANE + "_acknowledged",
        "event.outcome is not m.Outcome.WON",
        "False",
    ),
    one(
        "task that succeeds with an unacknowledged adopted seal",
        "solo",
        STATE + "Lane.idle",
        "self.held or self.pending or self.owed",
        "self.held or self.pending",
    ),
    # Collection -------------------------------------------------------------------------------
    Mutant(
        "leftover collected while its append is in flight",
        "collected",
        (
            Edit(
                COLLECT + "_outputs", "lane, last=row.head.ref.seq))\n    done", "lane))\n    done"
            ),
            Edit(
                CATALOG + "_dead",
                "if slot.seq > row.head.ref.seq:\n        return False",
                "if slot.seq > row.head.ref.seq:\n        return True",
            ),
        ),
    ),
    one(
        "collected raised after the delete",
        "collector-fails",
        COLLECT + "survey",
        "return steps",
        "return steps[1:] + steps[:1]",
    ),
    one(
        "collected overwritten by an append",
        "collector-fails",
        MEMORY + "append",
        "replace(row, ref=ref, head=head)",
        "replace(row, ref=ref, head=head, collected=0)",
    ),
    one(
        "outputs collected before they are acknowledged",
        "collected",
        COLLECT + "_outputs",
        "if slot.seq <= collected and",
        "if",
    ),
    Mutant(
        "entry collected while its segment is in no list",
        "collector-fails",
        (
            Edit(COLLECT + "_entries", "if last > listed and", "if False and"),
            Edit(COLLECT + "_entries", "gone = min(last, listed)", "gone = last"),
        ),
    ),
    # Dropped offsets --------------------------------------------------------------------------
    one(
        "dropped offsets deleted before their entry",
        "collector-fails",
        COLLECT + "survey",
        "steps += _dropped(catalog, lane, row, collected, kept)",
        "steps[:0] = _dropped(catalog, lane, row, collected, kept)",
    ),
    Mutant(
        "dropped offsets of an append in flight deleted",
        "collector-fails",
        (
            Edit(COLLECT + "_dropped", "lane, last=row.head.ref.seq))", "lane))"),
            Edit(COLLECT + "_dropped", "slot.seq <= collected and slot", "slot"),
        ),
    ),
    one(
        "repeats not written down as dropped",
        "solo",
        "delivery.judge:_Sheet.add_to",
        "runs_of(self.batch.source, offsets, reasons)",
        "runs_of(self.batch.source, offsets[:0], reasons[:0])",
    ),
    one(
        "backup without dropped offsets",
        "restored-beside",
        BACKUP + "_wanted",
        "(Blob.DROPPED, seal.dropped, seal.inline_dropped),",
        "",
    ),
    # Compaction -------------------------------------------------------------------------------
    one(
        "merged segment named without the version of the list",
        "compacted",
        "dedup.formats.merged:merge_digest",
        "Writer().uint(listed.version)",
        "Writer()",
    ),
    Mutant(
        "ids deleted before the list names what they were merged into",
        "compacted",
        (
            Edit("dedup.compact:survey", "merge.replace,", "merge.delete,"),
            Edit("dedup.compact:survey", 'merged", merge.delete)', 'merged", merge.replace)'),
        ),
    ),
    one(
        "leftovers deleted while the list is open to them",
        "compacted",
        COLLECT + "_expired",
        "yield Step(kind, what, _replaces(lane, old, new))",
        "if gone:\n        yield Step(kind, what, _replaces(lane, old, new))",
    ),
    # Outputs that are made again --------------------------------------------------------------
    one(
        "outputs made again are not compared with what was sealed",
        "unsteady",
        REMAKER + "_remade",
        "content_digest(rows) != recipe.digest or len(rows) != seal.outputs.rows",
        "False",
    ),
    one(
        "dropped records are not left out when outputs are made again",
        "remade",
        "delivery.remaking:_keeps",
        "keeps[first:last] = False",
        "pass",
    ),
    one(
        "outputs are made again by whatever code there is",
        "changed",
        REMAKER + "_remade",
        "seal.code != self._stage.code",
        "False",
    ),
    one(
        "what was sealed first is made by the attempt that makes it again",
        "remade",
        REMAKER + "_remade",
        "ref=seal.ref",
        "ref=type(seal.ref)(seal.ref.incarnation, seal.ref.seq, bytes(16))",
    ),
    # Backup and restore -----------------------------------------------------------------------
    Mutant(
        "restore without new incarnation",
        "restored-beside",
        (
            Edit(
                BACKUP + "renewed",
                "head, incarnation = row.head, Incarnation(fresh())",
                "head, incarnation = row.head, row.head.ref.incarnation",
            ),
            Edit(
                BACKUP + "renewed",
                "past=(*head.past, Kept(head.ref.incarnation, head.ref.seq)),",
                "past=head.past,",
            ),
        ),
    ),
    one(
        "backup takes the sender before its receiver",
        "restored",
        BACKUP + "downstream_first",
        "upstream.add(writer, lane)",
        "upstream.add(lane, writer)",
    ),
)
