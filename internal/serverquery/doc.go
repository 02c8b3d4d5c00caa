// Package serverquery implements the query language of a MongoDB 5.0 server:
// filters, sorts, projections, aggregation pipelines and distinct values.
//
// It works on views into raw BSON. Filters and documents must not be changed while
// a value compiled from them is in use, and results may share memory with the
// arguments. Documents are not validated again: a malformed one gives a wrong
// result, never a panic.
//
// Every error is a [*servererr.Error] with the server's code, and with its
// message where that is known. Features that this package does not implement are
// refused as NotImplemented, by name: geometry, text search, $where, $bits…,
// keywords of $jsonSchema, stages, expressions, $slice, $elemMatch and the positional
// operator in projections, and regular expressions that need more than RE2 (look-around,
// back references, the option x).
//
// Errors at run time have the message without the server's prefix ("Executor error
// during find command", "PlanExecutor error during aggregation"): the command adds it.
//
// # Filters
//
// A [Matcher] follows a dotted path the way the server's matcher does: an array
// on the way stands for its elements that are documents, and for the element
// whose number the path names; an array at the end stands for its elements and
// for itself. Comparisons match values of the operand's type bracket only, and
// null also matches missing fields.
//
// Compiled values are safe for concurrent use unless they have a collation or an
// expression.
//
// # Differences from the server
//
//   - Expressions compare by the simple collation; a pipeline or a filter with
//     $expr under another one is refused.
//   - Sums and averages of decimals are refused.
//   - Of the system variables only ROOT, CURRENT and REMOVE are implemented.
//   - Sorting and grouping have no memory limit.
//   - A validator explains a failure if it is a single condition.
package serverquery
