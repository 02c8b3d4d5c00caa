// Package bucket keeps the open buckets of time-series collections: which measurements
// still fit, and what they make of the document that a primary writes and logs.
//
// A bucket has the measurements by columns, and the least and greatest value of each
// (control.min, control.max). Of a bucket that was written before, only the difference is
// logged. The sizes are estimated as the server does, so that buckets end where its do.
package bucket
