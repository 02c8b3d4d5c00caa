// Package bucket keeps the open buckets of time-series collections: it decides which
// measurements still fit, and computes the documents that a primary writes and logs.
//
// A bucket has the measurements by columns, and the least and greatest value of each
// (control.min, control.max). Of a bucket that was written before, only the difference is
// logged. The sizes are estimated as the server does, so that buckets end where its do.
package bucket
