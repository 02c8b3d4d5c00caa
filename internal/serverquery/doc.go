// Package serverquery is the query language as a MongoDB 5.0 server has it:
// filters, sorts, projections, aggregation pipelines and distinct values.
//
// All of it works on views into raw BSON. What a caller hands in (filters,
// documents) must not be changed while something compiled from it is in use, and
// what comes out may share memory with what went in. Documents are not validated
// again: a malformed one gives a wrong answer, never a panic.
//
// Every refusal is a [*servererr.Error] with the server's code, and with its
// message where that is known. What the server knows and this package does not
// is refused as NotImplemented, by name: geometry, text search, $where, $bits…,
// keywords of $jsonSchema, stages, expressions, and regular expressions that
// need more than RE2 (look-around, back references, the option x).
//
// What fails while a query runs, rather than when it is compiled, has the bare
// message: what a server writes before it ("Executor error during find command",
// "PlanExecutor error during aggregation") belongs to the command.
//
// # Filters
//
// A [Matcher] follows a dotted path the way the server's matcher does: an array
// on the way stands for its elements that are documents, and for the element
// whose number the path names; an array at the end stands for its elements and
// for itself. Comparisons see values of the operand's type bracket only, and
// null also finds what is missing.
//
// Nothing compiled is safe for concurrent use if a collation or an expression is
// involved. The rest is.
//
// # What is weaker than the server
//
//   - Expressions compare by the simple collation; a pipeline or a filter with
//     $expr under another one is refused.
//   - Sums and averages of decimals are refused.
//   - Variables of the system beyond ROOT, CURRENT and REMOVE are not there.
//   - Sorting and grouping have no memory limit.
package serverquery
