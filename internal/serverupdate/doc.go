// Package serverupdate says what a MongoDB 5.0 server makes of a document when
// it runs an update statement on it: the judge of compiled updates in tests,
// and the update path of the embedded replica set.
//
// It is slow and obvious on purpose, and shares nothing with the code that it
// judges. [Apply] takes the stored document and the statement's u argument: a
// pipeline (array), modifiers (document whose first field starts with $) or a
// replacement (any other document). What the server refuses is an [*Error] with
// the server's code; what this package does not know is an [*Error] too, never a
// guess. [CheckStatement] says whether the server would even read the statement.
//
// # What is modelled
//
//   - Stages $set, $addFields, $unset, $replaceWith and $replaceRoot.
//   - The expressions that a translation of a delta can need; the switch in
//     operator lists them. A name that is not there is refused as unrecognized,
//     although a server may know it.
//   - $set, $unset, $setOnInsert (which does nothing to a document that exists)
//     and $push with $each and $slice.
//   - What happens around it: _id stays and comes first, nesting and size limits,
//     $-prefixed names at the top level, zero timestamps of replacements.
//
// # Holes
//
// Between stages the server keeps a document as its stored bytes plus a cache of
// the fields that were read or written. A removed field is a cache entry without
// a value, so setting the field again, in a later stage or in an outer $setField
// around an inner $unsetField, puts it back in its old place. Setting a field
// that never existed to a missing value keeps a place at the end. A document made
// afresh ($mergeObjects, $arrayToObject) keeps none of the holes of its inputs;
// an object expression keeps one for each of its own missing fields.
//
// The type document is the same two layers, so it does what the server does with
// stored documents that have a field name twice: lookup finds the first; a field
// that was read or written stands at each of its places, one that was not keeps
// its several values; a document on which nothing was written is returned byte
// for byte.
//
// # What is not
//
// Collations other than the simple one, arithmetic on decimals, subtraction beyond
// int64, $push with $position or $sort, positional paths and array filters,
// references ($ref, $id) that modifiers assemble at the top level, and generation
// of a missing _id. Work is bounded: a pipeline that takes more than about two
// million steps is refused as ExceededMemoryLimit.
package serverupdate
