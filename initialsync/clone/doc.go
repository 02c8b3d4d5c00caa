// Package clone copies the documents of collections from one member of the source
// into the target: in ranges, side by side, each of which goes on where it was.
package clone
