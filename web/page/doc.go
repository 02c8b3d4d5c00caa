// Package page is the page that operators see: one link at /, all links of the target at /fleet.
//
// It is static: HTML, styles and scripts that are embedded and served as they are in the
// repository, but for indentation and lines of comment, without a build step, in less than 120 KB. All figures come from the server that
// serves it:
//
//	GET events             the Snapshot each second, and what happens  (the only live source)
//	GET history?range=1h   the charts, and the timeline at the beginning
//	GET links              /fleet
//	POST requests          the buttons; GET requests, where the Snapshot does not have them
//
// The page guarantees:
//
//   - It does not look alive when it is not. If the server sends nothing new for eight
//     seconds, every figure is grey, the level is unknown, and the verdict says since when.
//   - A value that is null or missing is shown as unknown, never as 0. So a server that lacks a
//     field of this version is shown with that field unknown.
//   - No request leaves the server, nothing is evaluated, and no text from data becomes markup: the
//     Content-Security-Policy forbids it, and a test holds it with hostile names.
//   - No colour stands alone: levels have a shape and a word, lines of a chart a legend.
//
// docs/page.md says what each figure means. test/browser drives it with Chromium.
package page
