// Package corpus reads recordings of what a real replica set wrote, and proves
// that applying them gives the data of that replica set.
//
// A recording is a folder:
//
//	meta.json       what it is about, and which part of the log it holds
//	oplog.bson      the log's entries, concatenated
//	commands.jsonl  the commands that caused them (optional, see below)
//	before/         the data that the log has to be applied to (absent: none)
//	after/          the data that must result
//
// Before and after hold catalog.json, what listCollections and listIndexes
// showed, and a file DB.COLLECTION.bson for each collection.
//
// Nothing in a recording is trusted. Whatever is wrong with a file is a
// [*FileError] that names the file, the byte and the entry.
//
// [Verify] does not read commands.jsonl: what the log does to the data does not
// depend on it. [Scenario.Commands] is for comparing a server's answers with those
// of the recorded one.
//
// [Verify] is the proof. It applies the log as a member in steady state does and
// as one in its initial sync does, and compares documents byte for byte. Then it
// applies parts of the log again, in the way of the server's own tests of
// idempotency:
//
//	a prefix, everything, a suffix   must end where everything ended
//
// on top of what the round before left, in initial-sync mode. Small recordings
// are tried with every prefix and every suffix, larger ones with a random sample,
// whose size goes by the number of entries and by bytes. Some kinds of log need not converge by the rules of the server itself:
// see [Report.NotReapplied].
//
// While a log is applied, each delta that meets a document is compiled as well,
// to the update that would be sent to a server, and carried out by the rules of
// one: it must make the same document.
//
// Whether before/ is exact, or a copy that was taken while writes went on, is
// found out by applying the log. It is exact if the log gives after/ in the way of
// a member in steady state. If not, it passes for a moving copy only where the log
// met something that it cannot meet in exact data; then the way of an initial sync
// has to give after/. See [Report.Notes].
package corpus
