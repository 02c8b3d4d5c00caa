// Package serverupdate applies update statements to documents as a MongoDB 5.0
// server does. Tests check compiled updates with it, and it is the update path of
// the embedded replica set.
//
// It shares no code with the compiler that it checks. [Compile] parses a statement's u
// argument: a pipeline (array), modifiers (document whose first field starts with
// $) or a replacement (any other document). [Statement.Apply] runs it on a stored
// document, [Statement.Upsert] makes the document to insert where none matched, and
// [Options.CheckInsert] is what an inserted document goes through. [Apply] does the
// first two steps in one. Statements that the server refuses are an [*Error] with the
// server's code; unknown features are an [*Error] too, never a guess.
// [CheckStatement] reports whether the server can parse the statement.
//
// # Supported
//
//   - All modifiers of a 5.0 server, with positional paths ($, $[] and $[name]) and
//     array filters, its arithmetic on integers and doubles, the order in which it
//     creates fields, its words for what it refuses, and its log entries in the
//     $v: 2 and the $v: 1 form.
//   - Stages $set, $addFields, $unset, $replaceWith and $replaceRoot.
//   - The expressions that a translation of a delta can need, comparisons and logic.
//     Others of a 5.0 server are refused as NotImplemented. Errors of expressions have
//     the server's code, but not its message.
//   - The rules for all updates: _id stays and comes first, nesting and size limits,
//     $-prefixed names at the top level, zero timestamps of replacements and inserts.
//
// The caller gives the clock, the cluster time, new ids and the query language:
// see [Options].
//
// # Log entries of modifiers
//
// The server logs the paths that modifiers wrote, in the order in which it wrote
// them, and does not compare documents: a $currentDate that writes the same date, a
// $push that sorts a sorted array and an $unset of a null in an array are logged,
// a $set of the present value is not. A $push to the end of an array with
// elements is logged as these elements; any other change of an array logs all of
// it, and so do array updates ($[]) that change several elements of one. It never
// logs the document instead, however long the paths.
//
// # Holes
//
// Between stages the server keeps a document as its stored bytes plus a cache of
// the fields that were read or written. A removed field is a cache entry without
// a value, so setting the field again, in a later stage or in an outer $setField
// around an inner $unsetField, puts it back in its old place. Setting a field
// that never existed to a missing value keeps a place at the end. A document made
// afresh ($mergeObjects) keeps none of the holes of its inputs;
// an object expression keeps one for each of its own missing fields.
//
// The type document is the same two layers, so it behaves like the server with
// stored documents that have a field name twice: lookup finds the first; a field
// that was read or written stands at each of its places, one that was not keeps
// its several values; a document on which nothing was written is returned byte
// for byte.
//
// # Not supported
//
// In pipelines: collations other than the simple one, subtraction beyond int64. Work
// is bounded there: a pipeline that takes more than about two million steps is refused
// as ExceededMemoryLimit. Everywhere: arithmetic on decimals, the rules of servers of a
// feature compatibility version before 5.0 for names with dots, and for those with
// dollars in modifiers and inserts, shard keys as further immutable fields, and
// time-series collections.
package serverupdate
