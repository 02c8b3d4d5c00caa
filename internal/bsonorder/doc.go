// Package bsonorder compares BSON values as the server does.
//
// Two documents of a collection cannot have equal _ids, and the server considers
// some values with different bytes equal: the int32 1, the int64 1, the double 1.0
// and the decimal 1.00 are one number, and under a collation "a" and "A" may be
// one string. [Compare] implements that order, for values of all types. It is a
// total order, so it can order the keys of a map.
//
// Values are views into validated raw BSON. Malformed bytes do not make Compare
// panic, but it may then report different values as equal.
//
// A [Collator] stands for a collation. It supports collations that can be
// expressed with the tables of golang.org/x/text and refuses the rest with a
// [*CollationError]. The tables are older than the server's, so the order of
// strings may differ from the server's in rare scripts; which strings are equal
// hardly does.
package bsonorder
