// Package browser drives the page (package web/page) with Chromium: against a server with canned
// answers, for every state of a link, and against the programs.
//
// It is a module of its own, so that the driver of the browser is not a dependency of the program. Chromium
// is the one of CHROMIUM, or on the path (tools/browser.sh installs Debian's); without it the tests are
// skipped, or fail if REQUIRE_BROWSER is set. PAGE_SHOTS=DIR stores screenshots of every state, in two
// widths, light and dark.
package browser
