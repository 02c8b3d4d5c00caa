// Package docs checks the pages of the repository: README.md and its neighbors, and
// everything under docs/. Tables that repeat what the code says are checked next to
// that code.
package docs
