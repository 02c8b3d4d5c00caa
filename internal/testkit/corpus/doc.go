// Package corpus reads recordings of a real replica set's oplog, and proves
// that applying them gives the data of that replica set.
//
// A recording is a folder:
//
//	meta.json       a description, and the range of the log
//	oplog.bson      the log's entries, concatenated
//	commands.jsonl  the commands that caused them (optional, see below)
//	before/         the data that the log has to be applied to (absent: none)
//	after/          the data that must result
//
// Before and after contain catalog.json, the replies of listCollections and
// listIndexes, and a file DB.COLLECTION.bson for each collection.
//
// Recordings are not trusted. Every fault of a file is a [*FileError] that names
// the file, the byte and the entry.
//
// [Verify] applies the log in steady mode and in initial-sync mode, and compares
// documents byte for byte. Then it applies parts of the log again, as the server's
// own idempotency tests do:
//
//	a prefix, everything, a suffix   must give the same data as everything
//
// in initial-sync mode, each round on the result of the previous one. Small recordings
// are tested with every prefix and every suffix, larger ones with a random sample,
// whose size depends on the number of entries and bytes. Some logs need not converge
// on the server either: see [Report.NotReapplied].
//
// Verify does not read commands.jsonl. [Scenario.Commands] is for comparing a server's
// replies with the recorded ones.
//
// While a log is applied, each delta of an existing document is also compiled to the
// update that would be sent to a server, and executed by the server's rules: the
// resulting document must be the same.
//
// Verify determines by applying the log whether before/ is exact, or a copy that was
// taken during writes. It is exact if the log gives after/ in steady mode. Otherwise it
// counts as such a copy only if the log found a state that is impossible in exact data;
// then initial-sync mode must give after/. See [Report.Notes].
package corpus
